"""A claim locks no row of `workers`"""

from alembic import op

revision = "0011_fence"
down_revision = "0010_costs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A foreign key locks the row that it names, FOR KEY SHARE. The row of a process is deleted only
    # when no response names it (DELETE_OLD_WORKERS).
    op.execute("ALTER TABLE responses DROP CONSTRAINT IF EXISTS fk_responses_worker")
