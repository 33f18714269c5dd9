"""The name of the cell"""

from alembic import op

revision = "0013_cells"
down_revision = "0012_containers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before do not know this table.
    op.execute("""
        CREATE TABLE cell (
            single boolean DEFAULT true NOT NULL,
            name text NOT NULL,
            CONSTRAINT pk_cell PRIMARY KEY (single),
            CONSTRAINT ck_cell_single CHECK (single)
        )
    """)
