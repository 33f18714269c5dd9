"""responses that are deferred while no upstream is available; which upstream answered"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BEFORE = "outcome IN ('handed_over', 'requeued', 'returned', 'died')"
_SINCE = "outcome IN ('handed_over', 'requeued', 'returned', 'put_off', 'died')"


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "resume_at",
            sa.DateTime(timezone=True),
            comment="put off: nobody is to take it before, unless to end it",
        ),
    )
    op.add_column(
        "responses",
        sa.Column(
            "upstream", sa.Text(), comment="which answered the last turn, by its configured name"
        ),
    )
    op.drop_constraint(op.f("ck_attempts_outcome"), "attempts")
    op.create_check_constraint(op.f("ck_attempts_outcome"), "attempts", _SINCE)


def downgrade() -> None:
    op.execute("UPDATE attempts SET outcome = 'handed_over' WHERE outcome = 'put_off'")
    op.drop_constraint(op.f("ck_attempts_outcome"), "attempts")
    op.create_check_constraint(op.f("ck_attempts_outcome"), "attempts", _BEFORE)
    op.drop_column("responses", "upstream")
    op.drop_column("responses", "resume_at")
