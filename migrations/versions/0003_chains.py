"""Responses that wait for their previous one, and responses that run another one again"""

from alembic import op

revision = "0003_chains"
down_revision = "0002_schedules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: a worker of 0.1.0 claims no response that waits, because that one is deferred until
    # a time that does not come (models/lifecycle.py, NEVER).
    op.execute(
        "ALTER TABLE responses ADD COLUMN waits boolean, ADD COLUMN awaited boolean, "
        "ADD COLUMN retried_by uuid"
    )
