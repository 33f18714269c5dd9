"""An index of the files of vector stores that failed or were cancelled and still have chunks

The purge deletes these chunks. A process of the previous release works with the new index.
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_INDEX = "ix_vector_store_files_useless_chunks"
_USELESS = "status IN ('failed', 'cancelled') AND chunks > 0 AND delete_requested_at IS NULL"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY {_INDEX} ON vector_store_files (id) WHERE {_USELESS}"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
