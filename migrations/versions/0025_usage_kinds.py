"""Usage of proxied requests by its kind

Additive: processes of the previous release write entries without a kind, which count as completions.
If one of their workers sums a day up, all of that day does.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_TABLES = ("usage_entries", "usage_days")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(
            table, sa.Column("kind", sa.Text(), comment="of a proxied request; null: completions")
        )
        op.add_column(
            table,
            sa.Column(
                "units",
                sa.BigInteger(),
                comment="images, characters of speech, or seconds of audio",
            ),
        )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "units")
        op.drop_column(table, "kind")
