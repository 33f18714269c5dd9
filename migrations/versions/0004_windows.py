"""Completion windows of background responses (ADR 0072)"""

from alembic import op

revision = "0004_windows"
down_revision = "0003_chains"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_responses_continuation": "(project_id, continuation_id, started_at)"
    " WHERE continuation_id IS NOT NULL",
}


def upgrade() -> None:
    # Additive: processes of the release before run on (docs/deploy.md, "Upgrading"). Each step may
    # be repeated: the first ones are committed before the indexes are built.
    op.execute(
        "ALTER TABLE responses ADD COLUMN IF NOT EXISTS window_ends_at timestamptz,"
        " ADD COLUMN IF NOT EXISTS urgent_at timestamptz,"
        " ADD COLUMN IF NOT EXISTS continuation_id text"
    )
    for table in ("usage_entries", "usage_days"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS completion_window text")
    # While responses are written: an index that is built in a transaction stops that.
    with op.get_context().autocommit_block():
        for name, columns in _INDEXES.items():
            op.execute(f"DROP INDEX IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON responses {columns}")
    op.execute("UPDATE schema_compatibility SET oldest_revision = '0001_first'")
