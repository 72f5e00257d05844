"""When a task may leave and when it was judged, digests, and which texts have gone out."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE dispatcher.tasks
            ADD COLUMN submitted_at timestamptz,
            ADD COLUMN send_at timestamptz,
            -- A serialized LocalTime.
            ADD COLUMN send_at_local bytea,
            -- The schedule gate has held it.
            ADD COLUMN scheduled boolean NOT NULL DEFAULT false,
            -- When the decision that stands was made, and until when the last deferral holds.
            ADD COLUMN decided_at timestamptz,
            ADD COLUMN planned_at timestamptz,
            -- It is a digest. Its intent_id is its own; its parts name that in gathered_into. A part's row only stands
            -- for its intent: what becomes of it is what becomes of the digest, while its state is SCHEDULED.
            ADD COLUMN gathered boolean NOT NULL DEFAULT false,
            ADD COLUMN gathered_into uuid,
            -- Of a digest that still gathers: tenant, scene, user, template and wishes, hashed.
            ADD COLUMN digest_key bytea;

        UPDATE dispatcher.tasks SET submitted_at = created_at, decided_at = created_at,
            planned_at = CASE WHEN deferrals > 0 THEN run_at END;

        ALTER TABLE dispatcher.tasks
            ALTER COLUMN submitted_at SET DEFAULT clock_timestamp(),
            ALTER COLUMN submitted_at SET NOT NULL,
            ALTER COLUMN decided_at SET DEFAULT clock_timestamp(),
            ALTER COLUMN decided_at SET NOT NULL;

        CREATE UNIQUE INDEX tasks_digest ON dispatcher.tasks (digest_key) WHERE digest_key IS NOT NULL;
        CREATE INDEX tasks_part ON dispatcher.tasks (gathered_into) WHERE gathered_into IS NOT NULL;
        CREATE INDEX tasks_counted ON dispatcher.tasks (tenant, user_id, decided_at) WHERE cap_date IS NOT NULL;
        CREATE INDEX tasks_created ON dispatcher.tasks (tenant, created_at, id);

        -- Which task has the right to send a text: it keeps it when it has left, and loses it when it never will.
        CREATE TABLE dispatcher.fingerprints (
            tenant text NOT NULL,
            user_id text NOT NULL,
            channel text NOT NULL,
            fingerprint bytea NOT NULL,
            task_id uuid NOT NULL,
            until timestamptz NOT NULL,
            PRIMARY KEY (tenant, user_id, channel, fingerprint)
        );
        CREATE INDEX fingerprints_task ON dispatcher.fingerprints (task_id);
        CREATE INDEX fingerprints_until ON dispatcher.fingerprints (until);

        ALTER TABLE dispatcher.fingerprints ENABLE ROW LEVEL SECURITY;
        CREATE POLICY engine ON dispatcher.fingerprints TO reach_engine USING (true) WITH CHECK (true);
        CREATE POLICY tenant ON dispatcher.fingerprints TO reach_api
            USING (tenant = current_setting('reach.tenant', true))
            WITH CHECK (tenant = current_setting('reach.tenant', true));
        """
    )
