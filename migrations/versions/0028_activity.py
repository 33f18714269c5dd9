"""What happened by minute, for the plots of the console

Additive: processes of the previous release do not know the table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0025"
branch_labels = None
depends_on = None


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _durations(name: str, comment: str) -> sa.Column[list[int]]:
    return sa.Column(
        name,
        sa.ARRAY(sa.Integer()),
        server_default=sa.text("'{}'"),
        nullable=False,
        comment=comment,
    )


def upgrade() -> None:
    op.create_table(
        "activity",
        sa.Column(
            "width",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="seconds that the row is about: 60, or 600",
        ),
        sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "sampled",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="a worker has begun to count what waits and runs",
        ),
        sa.Column(
            "waiting", sa.Integer(), comment="responses that waited; of ten minutes the most"
        ),
        sa.Column("oldest_seconds", sa.Double(), comment="the age of the oldest of them"),
        sa.Column("running", sa.Integer(), comment="responses that ran; of ten minutes the most"),
        _count("completed"),
        _count("failed"),
        _count("input_tokens"),
        _count("output_tokens"),
        _durations(
            "first_token_counts",
            "responses by the time until their first output (models/operator/durations.py)",
        ),
        _durations("total_counts", "responses by the time until their end"),
        sa.PrimaryKeyConstraint("width", "begins_at", name=op.f("pk_activity")),
    )


def downgrade() -> None:
    op.drop_table("activity")
