"""${message}"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before run on (docs/deploy.md, "Upgrading"). If those of an
    # older one do not, this names the first revision whose release does:
    op.execute("UPDATE schema_compatibility SET oldest_revision = '${down_revision}'")
