"""Attempts whose upstream broke off its answer, so that the turn is repeated

The rows that exist are checked without blocking writes.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_OUTCOMES = ["handed_over", "requeued", "returned", "put_off", "died", "error"]


def upgrade() -> None:
    _allow_outcomes([*_OUTCOMES, "repeated"])
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_outcome")


def downgrade() -> None:
    op.execute("UPDATE attempts SET outcome = 'put_off' WHERE outcome = 'repeated'")
    _allow_outcomes(_OUTCOMES)


def _allow_outcomes(outcomes: list[str]) -> None:
    """Replaces the check of `attempts.outcome`; the rows that exist are not checked."""
    names = ", ".join(f"'{outcome}'" for outcome in outcomes)
    op.execute(
        "ALTER TABLE attempts DROP CONSTRAINT ck_attempts_outcome, "
        f"ADD CONSTRAINT ck_attempts_outcome CHECK (outcome IN ({names})) NOT VALID"
    )
