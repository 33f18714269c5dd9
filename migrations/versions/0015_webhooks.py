"""Webhooks: endpoints, and deliveries that the end of a response makes

Additive: processes of the previous release run on this schema. Their endings make deliveries too,
because a trigger makes them; processes of this release deliver them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TERMINAL = "('completed', 'incomplete', 'failed', 'cancelled')"
_TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("types", sa.ARRAY(sa.Text()), nullable=False, comment="of events; empty: all"),
        sa.Column("created_at", _TIMESTAMP, server_default=sa.func.now(), nullable=False),
        sa.Column(
            "secret_key_id", sa.Text(), nullable=False, comment="the key that sealed the secrets"
        ),
        sa.Column(
            "secrets", sa.LargeBinary(), nullable=False, comment="sealed: the newest one first"
        ),
        sa.Column(
            "old_secret_until", _TIMESTAMP, comment="end of a rotation: the second one signs too"
        ),
        sa.Column("disabled_at", _TIMESTAMP),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column(
            "failures",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="tries in a row that failed",
        ),
        sa.Column("failing_since", _TIMESTAMP),
        sa.Column("paused_until", _TIMESTAMP, comment="nothing is tried before that"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
            name=op.f("fk_webhook_endpoints_project_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_webhook_endpoints_project_id", "webhook_endpoints", ["project_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False, comment="the public id of the response"),
        sa.Column(
            "created_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "next_attempt_at",
            _TIMESTAMP,
            server_default=sa.func.clock_timestamp(),
            comment="while a worker tries it, when another one may; null: it has ended",
        ),
        sa.Column("delivered_at", _TIMESTAMP),
        sa.Column("last_status", sa.Integer(), comment="the HTTP status of the last try"),
        sa.Column(
            "last_error", sa.Text(), comment="why the last try failed, if there was no status"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_deliveries_endpoint_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_webhook_deliveries_waiting",
        "webhook_deliveries",
        ["endpoint_id", "next_attempt_at"],
        postgresql_where=sa.text("next_attempt_at IS NOT NULL"),
    )
    op.create_index("ix_webhook_deliveries_created_at", "webhook_deliveries", ["created_at"])
    op.execute(
        """
        CREATE OR REPLACE FUNCTION deliver_end_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE event uuid := gen_random_uuid();
        BEGIN
            INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id)
            SELECT gen_random_uuid(), e.id, event, 'response.' || NEW.status, 'resp_' || replace(NEW.id::text, '-', '')
            FROM webhook_endpoints e
            WHERE e.project_id = NEW.project_id AND e.disabled_at IS NULL
              AND (e.types = '{}' OR 'response.' || NEW.status = ANY (e.types));
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        f"""
        CREATE TRIGGER end_of_response_is_delivered AFTER UPDATE OF status ON responses FOR EACH ROW
        WHEN (NEW.background AND NEW.status IN {_TERMINAL} AND OLD.status NOT IN {_TERMINAL})
        EXECUTE FUNCTION deliver_end_of_response()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS end_of_response_is_delivered ON responses")
    op.execute("DROP FUNCTION IF EXISTS deliver_end_of_response()")
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_endpoints")
