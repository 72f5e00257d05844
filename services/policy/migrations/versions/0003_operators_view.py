"""What operators did to counters, and what a policy in shadow would have decided."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLES = ("counter_clears", "shadow_decisions")

_SCHEMA = """
CREATE TABLE policy.counter_clears (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL,
    cleared_by text NOT NULL,
    cleared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL,
    cleared integer
);
COMMENT ON TABLE policy.counter_clears IS
    'Who cleared the caps of a user, and why. What was sent up to then counts no more, also after a rebuild.';
COMMENT ON COLUMN policy.counter_clears.cleared IS 'Messages that count no more; null where that is not known.';
CREATE INDEX counter_clears_newest ON policy.counter_clears (tenant, user_id, cleared_at DESC);

CREATE TABLE policy.shadow_decisions (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    intent_id text NOT NULL,
    hop smallint NOT NULL,
    user_id text NOT NULL,
    scene text NOT NULL,
    decided_at timestamptz NOT NULL,
    gate text NOT NULL,
    actual bytea NOT NULL,
    other bytea NOT NULL
);
COMMENT ON TABLE policy.shadow_decisions IS
    'Messages about which the policy in shadow decided otherwise; actual and other are serialized decisions.';
CREATE INDEX shadow_decisions_newest ON policy.shadow_decisions (tenant, id DESC);
CREATE INDEX shadow_decisions_age ON policy.shadow_decisions (decided_at);
"""

_ROW_LEVEL_SECURITY = """
ALTER TABLE policy.{table} ENABLE ROW LEVEL SECURITY;
CREATE POLICY engine ON policy.{table} TO reach_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON policy.{table} TO reach_api
    USING (tenant = current_setting('reach.tenant', true))
    WITH CHECK (tenant = current_setting('reach.tenant', true));
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
    for table in _TABLES:
        op.execute(_ROW_LEVEL_SECURITY.format(table=table))
