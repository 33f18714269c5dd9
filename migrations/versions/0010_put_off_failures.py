"""why a response is deferred: each upstream that failed

Additive: processes of the previous release run on this schema.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_REASON_BEFORE = "why it is incomplete, or a finer code for a failure"
_REASON = f"{_REASON_BEFORE}; of a deferred one: the failure of its upstream"


def upgrade() -> None:
    op.add_column(
        "attempts",
        sa.Column(
            "failures",
            postgresql.JSONB(),
            comment=(
                "each upstream that failed, with reason and message; a deferred attempt waits for "
                "the last one"
            ),
        ),
    )
    op.alter_column(
        "responses",
        "reason",
        existing_type=sa.Text(),
        comment=_REASON,
        existing_comment=_REASON_BEFORE,
    )


def downgrade() -> None:
    op.alter_column(
        "responses",
        "reason",
        existing_type=sa.Text(),
        comment=_REASON_BEFORE,
        existing_comment=_REASON,
    )
    op.drop_column("attempts", "failures")
