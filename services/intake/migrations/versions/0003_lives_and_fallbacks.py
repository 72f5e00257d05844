"""How long an intent lives whose moment nobody knows yet, and why a fallback was needed."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE intake.intents
            -- Counts from the moment that the policy finds for `send_at_local`; `expires_at` is the latest it can be.
            ADD COLUMN lifetime_seconds double precision,
            -- The reason for which the hop before `state_hop` failed.
            ADD COLUMN fallback_after text NOT NULL DEFAULT '';
        """
    )
