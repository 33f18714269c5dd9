"""An id of each entry of a proxied request, which may be inserted again after a lost reply

A process of the previous release inserts entries without one.
"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_INDEX = "uq_usage_entries_entry_id"


def upgrade() -> None:
    op.execute("ALTER TABLE usage_entries ADD COLUMN IF NOT EXISTS entry_id uuid")
    op.execute(
        "COMMENT ON COLUMN usage_entries.entry_id IS 'of a proxied request: it is inserted once'"
    )
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
        op.execute(
            f"CREATE UNIQUE INDEX CONCURRENTLY {_INDEX} ON usage_entries (entry_id)"
            " WHERE entry_id IS NOT NULL"
        )


def downgrade() -> None:
    op.execute("ALTER TABLE usage_entries DROP COLUMN entry_id")
