"""When an intent may leave."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE intake.intents
            ADD COLUMN send_at timestamptz,
            -- A serialized LocalTime.
            ADD COLUMN send_at_local bytea;
        """
    )
