"""Intents, and how far their outcomes have been followed."""

from alembic import op

from agent_reach.durable import instance_table, queue_columns, queue_indexes, queue_storage

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute(instance_table("intake"))
    op.execute(
        f"""
        CREATE TABLE intake.intents (
            id uuid PRIMARY KEY,
            tenant text NOT NULL,
            agent text NOT NULL,
            user_id text NOT NULL,
            bare_channel text,
            bare_address text NOT NULL,
            scene text NOT NULL,
            category text NOT NULL,
            template text NOT NULL,
            template_version text NOT NULL,
            variables_json text NOT NULL,
            wishes text[] NOT NULL,
            priority smallint NOT NULL,
            expires_at timestamptz NOT NULL,
            intent_key text NOT NULL,
            key_hash bytea NOT NULL,
            content_hash bytea NOT NULL,
            created_at timestamptz NOT NULL,
            traceparent text NOT NULL,
            -- A projection of the dispatcher's outcomes, so that intents can be found by state.
            state text NOT NULL DEFAULT 'PENDING',
            state_reason text NOT NULL DEFAULT '',
            state_hop smallint NOT NULL DEFAULT 0,
            state_at timestamptz NOT NULL,
            {queue_columns()},
            UNIQUE (tenant, key_hash)
        ) {queue_storage()}
        """
    )
    op.execute(queue_indexes("intake.intents"))
    op.execute(
        """
        CREATE INDEX intents_user ON intake.intents (tenant, user_id, created_at, id);
        CREATE INDEX intents_created ON intake.intents (tenant, created_at, id);

        ALTER TABLE intake.intents ENABLE ROW LEVEL SECURITY;
        CREATE POLICY engine ON intake.intents TO reach_engine USING (true) WITH CHECK (true);
        CREATE POLICY tenant ON intake.intents TO reach_api
            USING (tenant = current_setting('reach.tenant', true))
            WITH CHECK (tenant = current_setting('reach.tenant', true));

        CREATE TABLE intake.outcome_cursor (
            only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
            cursor text NOT NULL
        );
        INSERT INTO intake.outcome_cursor (cursor) VALUES ('');
        """
    )
