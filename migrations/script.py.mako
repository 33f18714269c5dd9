"""${message}"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The oldest revision whose release runs on the new schema (docs/deploy.md, "Upgrading").
    op.execute("UPDATE schema_compatibility SET oldest_revision = '${down_revision}'")
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
