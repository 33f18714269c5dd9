"""The sizes of items and of histories, which are judged before anything is loaded

Additive: processes of the previous release run on this schema, and store no sizes. The columns have
no default that would rewrite a table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "items",
        sa.Column(
            "size",
            sa.BigInteger(),
            comment=(
                "bytes of the payload and of its call's answer, and some for each value in them; "
                "null: a process of a release that did not record it"
            ),
        ),
    )
    op.add_column(
        "responses",
        sa.Column(
            "history_size",
            sa.BigInteger(),
            comment="the sizes of all items that a continuation begins with; set at its end",
        ),
    )
    op.add_column(
        "conversations",
        sa.Column(
            "size",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="the sizes of its items; too small as long as processes of a release add "
            "items that did not record them",
        ),
    )


def downgrade() -> None:
    op.drop_column("conversations", "size")
    op.drop_column("responses", "history_size")
    op.drop_column("items", "size")
