"""calls of tools that this server runs: what was begun, what is finished"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tool_calls",
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column(
            "position",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="of its item in the output",
        ),
        sa.Column(
            "output_index", sa.Integer(), nullable=False, comment="of its item in the stream"
        ),
        sa.Column(
            "turn",
            sa.Integer(),
            nullable=False,
            comment="in which the model asked for it; 0: before the first",
        ),
        sa.Column(
            "started_attempt",
            sa.Integer(),
            nullable=True,
            comment="the attempt that began to run it last; not finished besides: its outcome is unknown",
        ),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column(
            "answer",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="what the model was told, where the item does not say it: a text, or parts",
        ),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_tool_calls_response_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("response_id", "position", name=op.f("pk_tool_calls")),
    )


def downgrade() -> None:
    op.drop_table("tool_calls")
