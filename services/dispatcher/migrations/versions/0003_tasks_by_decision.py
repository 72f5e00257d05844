"""Finds the tasks that were decided since a moment, of all users: what quotas are counted from."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # BRIN: read a few times a day, so it must cost the writers nothing; tasks lie about in the order of their making.
    op.execute(
        "CREATE INDEX tasks_decided ON dispatcher.tasks USING brin (decided_at) "
        "WITH (pages_per_range = 32, autosummarize = on)"
    )
