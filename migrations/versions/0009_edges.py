"""Indexes for recovery and retention; when a web process's creates were last settled; which
connection waits for a response; the oldest compatible release; which processes hold a tie; which
tool calls the stream shows one after the other

Additive: processes of the previous release run on this schema. The indexes are built without
blocking writes. If a build is interrupted, it leaves an invalid index of the same name, so each
build drops that one first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OPEN = "status IN ('queued', 'in_progress')"
_INDEXES = [
    # name, table, columns and condition
    (
        "ix_responses_unowned",
        "responses",
        f"(enqueued_at) WHERE worker IS NULL AND {_OPEN}",
    ),
    (
        "ix_responses_deleted",
        "responses",
        "(delete_requested_at) WHERE delete_requested_at IS NOT NULL",
    ),
    ("ix_idempotency_keys_response_id", "idempotency_keys", "(response_id)"),
    ("ix_idempotency_keys_expires_at", "idempotency_keys", "(expires_at)"),
    (
        "ix_idempotency_keys_body_hash",
        "idempotency_keys",
        "(project_id, body_hash) WHERE key LIKE 'sdk:%'",
    ),
]
_WEB_BEFORE = (
    "the web process that stored it, where a foreground client waits; no foreign key, so that "
    "deleting a process scans nothing"
)
_WEB = (
    "the web process where its client waits: the one that stored it, or the last one that a "
    "repeated request joined it on; no foreign key, so that deleting a process scans nothing"
)
_OUTCOMES = ["handed_over", "requeued", "returned", "put_off", "died"]


def _allow_outcomes(outcomes: list[str]) -> None:
    """Replaces the check of `attempts.outcome`; the rows that exist are not checked."""
    names = ", ".join(f"'{outcome}'" for outcome in outcomes)
    op.execute(
        "ALTER TABLE attempts DROP CONSTRAINT ck_attempts_outcome, "
        f"ADD CONSTRAINT ck_attempts_outcome CHECK (outcome IN ({names})) NOT VALID"
    )


def upgrade() -> None:
    compatibility = op.create_table(
        "schema_compatibility",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "oldest_revision",
            sa.Text(),
            nullable=False,
            comment="the oldest migration whose release runs on this schema",
        ),
        sa.CheckConstraint("single", name=op.f("ck_schema_compatibility_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_schema_compatibility")),
    )
    op.bulk_insert(compatibility, [{"oldest_revision": "0008"}])
    op.add_column(
        "workers",
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            comment=(
                "a web process: creates sent before this time have a known outcome; null: a "
                "process of a release that did not record it"
            ),
        ),
    )
    _allow_outcomes([*_OUTCOMES, "error"])
    op.add_column(
        "responses",
        sa.Column(
            "waiter",
            sa.Uuid(),
            comment="the connection whose client waits for the answer; null: it ended before",
        ),
    )
    op.add_column(
        "workers",
        sa.Column(
            "tied",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="it has held the lock of its tie: the lock is free only if its session ended",
        ),
    )
    op.add_column(
        "tool_calls",
        sa.Column(
            "in_order",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment=(
                "the log has no item after it until it is finished; false: a process of a release "
                "that sent the calls of a turn side by side stored it"
            ),
        ),
    )
    op.alter_column(
        "responses", "web", existing_type=sa.Uuid(), comment=_WEB, existing_comment=_WEB_BEFORE
    )
    with op.get_context().autocommit_block():
        for name, table, definition in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} {definition}")
        op.execute("ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_outcome")


def downgrade() -> None:
    for name, _, _ in _INDEXES:
        op.execute(f"DROP INDEX IF EXISTS {name}")
    op.execute("UPDATE attempts SET outcome = 'died' WHERE outcome = 'error'")
    _allow_outcomes(_OUTCOMES)
    op.alter_column(
        "responses", "web", existing_type=sa.Uuid(), comment=_WEB_BEFORE, existing_comment=_WEB
    )
    op.drop_column("tool_calls", "in_order")
    op.drop_column("responses", "waiter")
    op.drop_column("workers", "tied")
    op.drop_column("workers", "settled_at")
    op.drop_table("schema_compatibility")
