"""Tasks with their attempts and receipts, and the outcomes that agents read."""

from alembic import op

from agent_reach.durable import instance_table, queue_columns, queue_indexes, queue_storage

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute(instance_table("dispatcher"))
    op.execute(
        f"""
        CREATE TABLE dispatcher.tasks (
            id uuid PRIMARY KEY,
            intent_id uuid NOT NULL,
            hop smallint NOT NULL CHECK (hop IN (0, 1)),
            tenant text NOT NULL,
            user_id text NOT NULL,
            bare_channel text,
            bare_address text NOT NULL DEFAULT '',
            scene text NOT NULL,
            category text NOT NULL,
            template text NOT NULL,
            variables jsonb NOT NULL,
            wishes text[] NOT NULL,
            priority smallint NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz NOT NULL,
            traceparent text NOT NULL DEFAULT '',
            state text NOT NULL,
            reason text NOT NULL DEFAULT '',
            state_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            channel text,
            address text NOT NULL DEFAULT '',
            locale text NOT NULL DEFAULT '',
            subject text NOT NULL DEFAULT '',
            body text NOT NULL DEFAULT '',
            html text NOT NULL DEFAULT '',
            template_version text NOT NULL DEFAULT '',
            fingerprint bytea,
            idempotency_key text NOT NULL DEFAULT '',
            decisions bytea[] NOT NULL DEFAULT '{{}}',
            cap_date date,
            deferrals smallint NOT NULL DEFAULT 0,
            evaluate boolean NOT NULL DEFAULT false,
            {queue_columns()},
            UNIQUE (intent_id, hop)
        ) {queue_storage()}
        """
    )
    op.execute(queue_indexes("dispatcher.tasks"))
    op.execute(
        """
        CREATE INDEX tasks_user ON dispatcher.tasks (tenant, user_id, created_at);
        CREATE INDEX tasks_idempotency_key ON dispatcher.tasks (idempotency_key) WHERE idempotency_key <> '';
        CREATE INDEX tasks_sending ON dispatcher.tasks (tenant, user_id) WHERE state = 'SENDING';
        CREATE INDEX tasks_sending_address ON dispatcher.tasks (tenant, address) WHERE state = 'SENDING';

        CREATE TABLE dispatcher.attempts (
            task_id uuid NOT NULL REFERENCES dispatcher.tasks ON DELETE CASCADE,
            number integer NOT NULL,
            tenant text NOT NULL,
            provider text NOT NULL,
            started_at timestamptz NOT NULL,
            duration_seconds double precision NOT NULL,
            result text NOT NULL,
            code text NOT NULL,
            provider_message_id text NOT NULL DEFAULT '',
            PRIMARY KEY (task_id, number)
        );
        CREATE INDEX attempts_message ON dispatcher.attempts (provider, provider_message_id)
            WHERE provider_message_id <> '';

        CREATE TABLE dispatcher.task_receipts (
            receipt_id uuid PRIMARY KEY,
            task_id uuid NOT NULL REFERENCES dispatcher.tasks ON DELETE CASCADE,
            tenant text NOT NULL,
            kind text NOT NULL,
            code text NOT NULL DEFAULT '',
            occurred_at timestamptz NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            changed_state boolean NOT NULL
        );
        CREATE INDEX task_receipts_task ON dispatcher.task_receipts (task_id);

        CREATE TABLE dispatcher.outcomes (
            seq bigint GENERATED ALWAYS AS IDENTITY,
            -- With seq the cursor: a reader stays below the oldest running transaction, so none is missed that
            -- commits late.
            xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
            tenant text NOT NULL,
            intent_id uuid NOT NULL,
            task_id uuid NOT NULL,
            hop smallint NOT NULL,
            user_id text NOT NULL,
            scene text NOT NULL,
            state text NOT NULL,
            reason text NOT NULL,
            channel text,
            attempts integer NOT NULL,
            occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (xid, seq)
        );
        CREATE INDEX outcomes_tenant ON dispatcher.outcomes (tenant, xid, seq);
        CREATE INDEX outcomes_intent ON dispatcher.outcomes (intent_id);

        -- Transaction numbers start anew when the database is restored from a dump: then the epoch is raised by hand,
        -- and cursors of the former one are refused instead of skipping outcomes.
        CREATE TABLE dispatcher.outcome_epoch (epoch integer PRIMARY KEY);
        INSERT INTO dispatcher.outcome_epoch VALUES (1);
        """
    )
    for table in ("tasks", "attempts", "task_receipts", "outcomes"):
        op.execute(
            f"""
            ALTER TABLE dispatcher.{table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY engine ON dispatcher.{table} TO reach_engine USING (true) WITH CHECK (true);
            CREATE POLICY tenant ON dispatcher.{table} TO reach_api
                USING (tenant = current_setting('reach.tenant', true))
                WITH CHECK (tenant = current_setting('reach.tenant', true));
            """
        )
