"""Addresses stand in their profile: one row and one index for what is written, read and replaced together."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE policy.profiles ADD COLUMN addresses jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN policy.profiles.addresses IS 'Addresses in normal form by channel, at most one for each.';

UPDATE policy.profiles profile SET addresses = own.addresses
FROM (SELECT tenant, user_id, jsonb_object_agg(channel, value) AS addresses
      FROM policy.addresses GROUP BY tenant, user_id) own
WHERE profile.tenant = own.tenant AND profile.user_id = own.user_id;

DROP TABLE policy.addresses;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
