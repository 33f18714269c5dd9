"""The size that the index of the search documents had when it was made"""

from alembic import op

revision = "0018_search_index"
down_revision = "0017_moved_things"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before never make the index again.
    op.execute("ALTER TABLE search_walk ADD COLUMN index_size bigint DEFAULT 0 NOT NULL")
