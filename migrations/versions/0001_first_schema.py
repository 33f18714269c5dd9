"""first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("worker", sa.Uuid(), nullable=False),
        sa.Column(
            "batch",
            sa.BigInteger(),
            nullable=False,
            comment="0 is the marker written at registration",
        ),
        sa.Column("response_ids", sa.ARRAY(sa.Uuid()), nullable=False),
        sa.Column("attempts", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("first_numbers", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("last_numbers", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("frames", sa.ARRAY(sa.LargeBinary()), nullable=False),
        sa.PrimaryKeyConstraint("worker", "batch", name=op.f("pk_journal")),
        postgresql_with={
            "autovacuum_vacuum_threshold": "200",
            "autovacuum_vacuum_scale_factor": "0.0",
            "autovacuum_vacuum_cost_delay": "0",
        },
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dead", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "ended",
            sa.Text(),
            nullable=True,
            comment="how it ended: stopped, or reaped by which worker",
        ),
        sa.Column(
            "flushed_batch",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="journal batches up to here are in event_log",
        ),
        sa.CheckConstraint("kind IN ('worker', 'quarantine', 'web')", name=op.f("ck_workers_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column(
            "prefix",
            sa.Text(),
            nullable=False,
            comment="the first characters, to recognise a key by",
        ),
        sa.Column("hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the whole key"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
            name=op.f("fk_conversations_project_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversations")),
    )
    op.create_table(
        "responses",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("store", sa.Boolean(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "parameters",
            sa.JSON(),
            nullable=False,
            comment="what the client set, without input and secrets; json, not jsonb: key order matters (ADR 0004)",
        ),
        sa.Column("previous_response_id", sa.Uuid(), nullable=True),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("usage", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "error",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="{code, message} as the API shows it",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=True,
            comment="why it is incomplete, or our own finer word for a failure",
        ),
        sa.Column(
            "failure",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="{status, type, code, param, retry_after} for a foreground client that got no output",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "completed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it reached a terminal status",
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "worker", sa.Uuid(), nullable=True, comment="the owner; null when nobody runs it"
        ),
        sa.Column(
            "web",
            sa.Uuid(),
            nullable=True,
            comment="the web process a foreground client waits at; no foreign key, so that forgetting a process scans nothing",
        ),
        sa.Column(
            "attempt",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="+1 at every claim, never lowered or reused",
        ),
        sa.Column(
            "deaths",
            sa.SmallInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="owners that died since the last checkpoint",
        ),
        sa.Column(
            "enqueued_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when its bell was rung last",
        ),
        sa.Column("rings", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "delete_requested_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="gone from the API; purged once it has ended",
        ),
        sa.Column("turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "checkpoint_number",
            sa.Integer(),
            server_default=sa.text("-1"),
            nullable=False,
            comment="the log up to here belongs to finished turns",
        ),
        sa.Column(
            "next_output_index",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="as of the checkpoint",
        ),
        sa.Column(
            "unanswered_calls",
            sa.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="call ids a continuation must answer",
        ),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
            name=op.f("ck_responses_status"),
        ),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("fk_responses_conversation_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
            name=op.f("fk_responses_project_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["worker"], ["workers.id"], name=op.f("fk_responses_worker")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_responses")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("ix_responses_expires_at", "responses", ["expires_at"], unique=False)
    op.create_index(
        "ix_responses_worker",
        "responses",
        ["worker"],
        unique=False,
        postgresql_where=sa.text("worker IS NOT NULL"),
    )
    op.create_index(
        "ix_responses_previous_response_id",
        "responses",
        ["previous_response_id"],
        unique=False,
        postgresql_where=sa.text("previous_response_id IS NOT NULL"),
    )
    op.create_index(
        "ix_responses_open",
        "responses",
        ["enqueued_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.create_index(
        "uq_responses_conversation_running",
        "responses",
        ["conversation_id"],
        unique=True,
        postgresql_where=sa.text(
            "conversation_id IS NOT NULL AND status IN ('queued', 'in_progress')"
        ),
    )
    op.create_table(
        "event_log",
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("first_number", sa.Integer(), nullable=False),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "frames",
            sa.LargeBinary(),
            nullable=False,
            comment="the SSE bytes as every reader gets them",
        ),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_event_log_response_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("response_id", "first_number", name=op.f("pk_event_log")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
            name=op.f("fk_idempotency_keys_project_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_idempotency_keys_response_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "items",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=True),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.CheckConstraint("direction IN ('input', 'output')", name=op.f("ck_items_direction")),
        sa.CheckConstraint(
            "(response_id IS NULL) <> (conversation_id IS NULL)", name=op.f("ck_items_one_owner")
        ),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("fk_items_conversation_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name=op.f("fk_items_response_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_items")),
        sa.UniqueConstraint("conversation_id", "position", name=op.f("uq_items_conversation_id")),
        sa.UniqueConstraint(
            "response_id", "direction", "position", name=op.f("uq_items_response_id")
        ),
    )
    op.create_table(
        "job_secrets",
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_job_secrets_response_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("response_id", name=op.f("pk_job_secrets")),
    )


def downgrade() -> None:
    op.drop_table("job_secrets")
    op.drop_table("items")
    op.drop_table("idempotency_keys")
    op.drop_table("event_log")
    op.drop_index(
        "uq_responses_conversation_running",
        table_name="responses",
        postgresql_where=sa.text(
            "conversation_id IS NOT NULL AND status IN ('queued', 'in_progress')"
        ),
    )
    op.drop_index(
        "ix_responses_open",
        table_name="responses",
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.drop_index(
        "ix_responses_previous_response_id",
        table_name="responses",
        postgresql_where=sa.text("previous_response_id IS NOT NULL"),
    )
    op.drop_index(
        "ix_responses_worker",
        table_name="responses",
        postgresql_where=sa.text("worker IS NOT NULL"),
    )
    op.drop_index("ix_responses_expires_at", table_name="responses")
    op.drop_table("responses")
    op.drop_table("conversations")
    op.drop_table("api_keys")
    op.drop_table("workers")
    op.drop_table("projects")
    op.drop_table("journal")
