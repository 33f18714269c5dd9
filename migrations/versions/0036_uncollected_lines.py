"""Responses are kept until their batch has written its results; archived projects are cancelled by workers

A process of the previous release cancels what is open when it archives a project; workers look
again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "projects",
        sa.Column(
            "cancelled",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="of one that was archived: all that was open was cancelled",
        ),
    )
    op.create_index(
        "ix_batch_lines_response_id",
        "batch_lines",
        ["response_id"],
        postgresql_where=sa.text("response_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_batch_lines_response_id", table_name="batch_lines")
    op.drop_column("projects", "cancelled")
