"""Preferences; suppressions listed with those that were lifted."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE TABLE policy.preferences (
    tenant text NOT NULL,
    user_id text NOT NULL,
    category text NOT NULL DEFAULT '',
    channel text NOT NULL DEFAULT '',
    opt_in boolean,
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, user_id, category, channel)
);
COMMENT ON TABLE policy.preferences IS
    'What users chose to hear about. Empty text means: not limited to one. No opt_in means: taken back, by whom and when.';

-- Serves lists with the lifted ones and without, which are by far the most.
DROP INDEX policy.suppressions_newest;
CREATE INDEX suppressions_by_age ON policy.suppressions (tenant, id DESC);
CREATE INDEX suppressions_lifted ON policy.suppressions (tenant, user_id, address_channel, address)
    WHERE lifted_at IS NOT NULL;

ALTER TABLE policy.preferences ENABLE ROW LEVEL SECURITY;
CREATE POLICY engine ON policy.preferences TO reach_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON policy.preferences TO reach_api
    USING (tenant = current_setting('reach.tenant', true))
    WITH CHECK (tenant = current_setting('reach.tenant', true));
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
