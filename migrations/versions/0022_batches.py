"""Batches: their state, and the lines of their input that are not in an output file yet

Additive: processes of the previous release do not know these tables. They may run the responses of
batches as they run others. The end of such a response makes no deliveries to webhooks: the end of
the batch does.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_OPEN = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_TIMESTAMP = sa.DateTime(timezone=True)
_DELIVER = """
        CREATE OR REPLACE FUNCTION deliver_end_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE event uuid := gen_random_uuid();
        BEGIN
            {condition}INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id)
            SELECT gen_random_uuid(), e.id, event, 'response.' || NEW.status, 'resp_' || replace(NEW.id::text, '-', '')
            FROM webhook_endpoints e
            WHERE e.project_id = NEW.project_id AND e.disabled_at IS NULL
              AND (e.types = '{{}}' OR 'response.' || NEW.status = ANY (e.types));
            RETURN NULL;
        END $$
        """


def _count(name: str, comment: str | None = None) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment=comment
    )


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column(
            "api_key_id", sa.Uuid(), nullable=False, comment="the key of the request that made it"
        ),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", sa.JSON(), comment="null: the client sent none"),
        sa.Column("output_lifetime", sa.Interval(), comment="of its output files, after its end"),
        sa.Column("status", sa.Text(), server_default="validating", nullable=False),
        sa.Column(
            "ending",
            sa.Text(),
            comment="the terminal status that it will have; null: none but `completed` is known",
        ),
        sa.Column("model", sa.Text(), comment="of its first request"),
        sa.Column("errors", sa.JSON(), comment="of its input file"),
        sa.Column("created_at", _TIMESTAMP, server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", _TIMESTAMP, nullable=False, comment="end of completion_window"),
        sa.Column("in_progress_at", _TIMESTAMP),
        sa.Column("finalizing_at", _TIMESTAMP),
        sa.Column("cancelling_at", _TIMESTAMP),
        sa.Column("ended_at", _TIMESTAMP),
        _count("validated_lines", "lines of the input that were checked"),
        _count("validated_bytes", "where the next one begins"),
        _count("expanded_lines", "lines of the input that were made responses or errors"),
        _count("expanded_bytes", "where the next one begins"),
        _count("expanded", "requests that were made responses or errors"),
        _count("total", "requests"),
        _count("completed", "requests that are in the output file"),
        _count("failed", "requests that are in the error file"),
        _count("input_tokens"),
        _count("cached_tokens"),
        _count("output_tokens"),
        _count("reasoning_tokens"),
        sa.Column("output_file_id", sa.Uuid(), comment="null: nothing was written to it"),
        _count("output_parts", "parts of the output file"),
        sa.Column("error_file_id", sa.Uuid(), comment="null: nothing was written to it"),
        _count("error_parts", "parts of the error file"),
        sa.Column(
            "expander_until",
            _TIMESTAMP,
            server_default=sa.func.now(),
            nullable=False,
            comment="before that, no other web process makes responses of its lines",
        ),
        sa.Column(
            "collector_until",
            _TIMESTAMP,
            server_default=sa.func.now(),
            nullable=False,
            comment="before that, no other worker does what there is to do",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_batches_project_id")
        ),
    )
    op.create_index("ix_batches_project_id", "batches", ["project_id", "id"])
    op.create_index(
        "ix_batches_collector_until",
        "batches",
        ["collector_until"],
        postgresql_where=sa.text(_OPEN),
    )
    op.create_index(
        "ix_batches_ended_at",
        "batches",
        ["ended_at"],
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False, comment="its number in the input, from 1"),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column(
            "expanded",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="it was made a response or an error",
        ),
        sa.Column("response_id", sa.Uuid(), comment="null: it was refused, or is not expanded"),
        sa.Column("error", sa.JSON(), comment="{status, body}, if it was refused"),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_lines")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_lines_batch_id"), ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_batch_lines_custom_id", "batch_lines", ["batch_id", "custom_id"], unique=True
    )
    op.create_index(
        "ix_batch_lines_expanded",
        "batch_lines",
        ["batch_id", "line"],
        postgresql_where=sa.text("expanded"),
    )
    op.execute(_DELIVER.format(condition="IF NEW.lane = 3 THEN RETURN NULL; END IF;\n            "))


def downgrade() -> None:
    op.execute(_DELIVER.format(condition=""))
    op.drop_table("batch_lines")
    op.drop_table("batches")
