"""Fields of a native upstream's Response object that this server does not make itself

A process of the previous release does not write them, and does not show them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "upstream_fields",
            sa.JSON(),
            comment="fields of a native upstream's Response object that this server does not make",
        ),
    )


def downgrade() -> None:
    op.drop_column("responses", "upstream_fields")
