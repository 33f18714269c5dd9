"""The hosts that code in a container may reach"""

from alembic import op

revision = "0014_container_hosts"
down_revision = "0013_cells"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before make containers without network.
    op.execute("ALTER TABLE containers ADD COLUMN allowed_domains text[] DEFAULT '{}' NOT NULL")
