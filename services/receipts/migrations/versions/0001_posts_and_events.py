"""What providers posted, as it came, and the events in it, which are never changed."""

from alembic import op

from agent_reach.durable import instance_table, queue_columns, queue_indexes, queue_storage

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute(instance_table("receipts"))
    op.execute(
        f"""
        CREATE TABLE receipts.posts (
            id uuid PRIMARY KEY,
            provider text NOT NULL,
            body_sha256 bytea NOT NULL,
            body bytea NOT NULL,
            received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            UNIQUE (provider, body_sha256)
        );
        CREATE TABLE receipts.events (
            id uuid PRIMARY KEY,
            provider text NOT NULL,
            provider_event_id text NOT NULL,
            post_id uuid REFERENCES receipts.posts,
            kind text NOT NULL,
            idempotency_key text NOT NULL,
            provider_message_id text NOT NULL,
            code text NOT NULL,
            occurred_at timestamptz,
            received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            priority smallint NOT NULL DEFAULT 5,
            result text,
            {queue_columns()},
            UNIQUE (provider, provider_event_id)
        ) {queue_storage()};
        """
    )
    op.execute(queue_indexes("receipts.events"))
    op.execute(
        """
        CREATE INDEX events_idempotency_key ON receipts.events (idempotency_key) WHERE idempotency_key <> '';
        CREATE INDEX events_message ON receipts.events (provider, provider_message_id)
            WHERE provider_message_id <> '';

        -- A fact belongs to no tenant before the dispatcher knows its task: the role api sees none.
        ALTER TABLE receipts.posts ENABLE ROW LEVEL SECURITY;
        ALTER TABLE receipts.events ENABLE ROW LEVEL SECURITY;
        CREATE POLICY engine ON receipts.posts TO reach_engine USING (true) WITH CHECK (true);
        CREATE POLICY engine ON receipts.events TO reach_engine USING (true) WITH CHECK (true);

        -- Append-only is not a promise of our code only: what was said can be changed or removed by the owner alone.
        REVOKE ALL ON receipts.posts, receipts.events, receipts.instance FROM reach_api;
        REVOKE UPDATE, DELETE ON receipts.posts, receipts.events FROM reach_engine;
        GRANT UPDATE (run_at, owner, claim_no, attempts, started_at, suspect, finished_at, priority, result)
            ON receipts.events TO reach_engine;
        """
    )
