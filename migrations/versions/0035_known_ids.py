"""Ids of events that follow from what has ended, and a count of crashes of what workers take

After a failover that has lost the end of a response, its second end has an event of the same id. A
process of the previous release works with all of this: it writes none of the new columns, so what
kills it is not counted.
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_EVENT = """
    CREATE FUNCTION end_event(kind text, id uuid, status text) RETURNS uuid LANGUAGE sql STABLE AS $$
        SELECT encode(substr(sha256(convert_to(kind || ' ' || id::text || ' ' || status, 'UTF8')), 1, 16), 'hex')::uuid
    $$
"""
_DELIVER = """
    CREATE OR REPLACE FUNCTION deliver_end_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE event uuid := {event};
    BEGIN
        IF NEW.lane = 3 OR NEW.reason = 'create_refused' THEN RETURN NULL; END IF;
        INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id)
        SELECT gen_random_uuid(), e.id, event, 'response.' || NEW.status, 'resp_' || replace(NEW.id::text, '-', '')
        FROM webhook_endpoints e
        WHERE e.project_id = NEW.project_id AND e.disabled_at IS NULL
          AND (e.types = '{{}}' OR 'response.' || NEW.status = ANY (e.types));
        RETURN NULL;
    END $$
"""
_COUNTS = (
    (
        "vector_store_files",
        "crashes",
        sa.Integer(),
        "those of them whose worker died, or works on it now",
    ),
    (
        "batches",
        "expander_crashes",
        sa.BigInteger(),
        "web processes that took it, in a row, and did not give it back",
    ),
    (
        "batches",
        "collector_crashes",
        sa.BigInteger(),
        "workers that took it, in a row, and did not give it back",
    ),
)


def upgrade() -> None:
    op.execute(_EVENT)
    op.execute(_DELIVER.format(event="end_event('response', NEW.id, NEW.status)"))
    for table, name, kind, comment in _COUNTS:
        zero = sa.text("0")
        op.add_column(
            table, sa.Column(name, kind, server_default=zero, nullable=False, comment=comment)
        )


def downgrade() -> None:
    for table, name, *_ in _COUNTS:
        op.drop_column(table, name)
    op.execute(_DELIVER.format(event="gen_random_uuid()"))
    op.execute("DROP FUNCTION end_event(text, uuid, text)")
