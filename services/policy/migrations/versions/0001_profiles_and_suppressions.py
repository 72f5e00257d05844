"""Profiles with their addresses and last activity; suppressions."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = ("profiles", "addresses", "activity", "suppressions")

_SCHEMA = """
CREATE TABLE policy.profiles (
    tenant text NOT NULL,
    user_id text NOT NULL,
    locale text NOT NULL,
    time_zone text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, user_id)
);
COMMENT ON TABLE policy.profiles IS 'What is known of a user; locale and time_zone are empty where unknown.';

CREATE TABLE policy.addresses (
    tenant text NOT NULL,
    user_id text NOT NULL,
    channel text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (tenant, user_id, channel),
    FOREIGN KEY (tenant, user_id) REFERENCES policy.profiles ON DELETE CASCADE
);
COMMENT ON TABLE policy.addresses IS 'Addresses in normal form, at most one per user and channel.';

CREATE TABLE policy.activity (
    tenant text NOT NULL,
    user_id text NOT NULL,
    time_zone text NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, user_id)
);
COMMENT ON TABLE policy.activity IS 'Where and when a user was last seen; users without a profile as well.';

CREATE TABLE policy.suppressions (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL DEFAULT '',
    address_channel text NOT NULL DEFAULT '',
    address text NOT NULL DEFAULT '',
    channel text NOT NULL DEFAULT '',
    category text NOT NULL DEFAULT '',
    source text NOT NULL,
    note text NOT NULL DEFAULT '',
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lifted_at timestamptz,
    lifted_by text,
    CHECK ((user_id <> '') <> (address <> '')),
    CHECK ((address <> '') = (address_channel <> '')),
    CHECK ((lifted_at IS NULL) = (lifted_by IS NULL))
);
COMMENT ON TABLE policy.suppressions IS
    'Who must not be written to. Lifted ones stay, for the audit. Empty text means: not limited to one.';
-- One standing suppression per source: an operator who lifts his own block does not undo an unsubscribe.
-- It is the lookup by user, too.
CREATE UNIQUE INDEX suppressions_standing ON policy.suppressions
    (tenant, user_id, address_channel, address, channel, category, source) WHERE lifted_at IS NULL;
CREATE INDEX suppressions_by_address ON policy.suppressions
    (tenant, address_channel, address) WHERE lifted_at IS NULL AND address <> '';
CREATE INDEX suppressions_newest ON policy.suppressions (tenant, id DESC) WHERE lifted_at IS NULL;
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
