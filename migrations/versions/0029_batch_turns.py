"""Open batches by project, so that projects take turns, and whether usage is that of batches

`ix_batches_turns` replaces `ix_batches_collector_until`: statements of the previous release read
the new one, as it has the same few rows. It is built without blocking writes. If the build is
interrupted, it leaves an invalid index of the same name, so it is dropped first. The previous
release writes usage without `batch`, which counts as none of batches; if one of its workers sums a
day up, all of that day does.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_TABLES = ("usage_entries", "usage_days")
_OPEN = "WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"


def upgrade() -> None:
    for table in _TABLES:
        batch = sa.Column("batch", sa.Boolean(), comment="of a request in a batch; null: it is not")
        op.add_column(table, batch)
    _replace(
        "ix_batches_collector_until", "ix_batches_turns", f"(project_id, collector_until) {_OPEN}"
    )


def downgrade() -> None:
    _replace("ix_batches_turns", "ix_batches_collector_until", f"(collector_until) {_OPEN}")
    for table in _TABLES:
        op.drop_column(table, "batch")


def _replace(old: str, new: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {new}")
        op.execute(f"CREATE INDEX CONCURRENTLY {new} ON batches {definition}")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {old}")
