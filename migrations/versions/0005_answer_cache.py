"""under which key a response's answer is remembered, and for how long"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "cache_key",
            sa.LargeBinary(),
            nullable=True,
            comment="under which its answer is remembered, where the request asked for that",
        ),
    )
    op.add_column(
        "responses",
        sa.Column(
            "cache_ttl",
            sa.Integer(),
            nullable=True,
            comment="for how many seconds; null: the answer was itself a remembered one",
        ),
    )


def downgrade() -> None:
    op.drop_column("responses", "cache_ttl")
    op.drop_column("responses", "cache_key")
