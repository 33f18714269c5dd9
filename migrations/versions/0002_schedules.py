"""Schedules"""

from pathlib import Path

from alembic import op

revision = "0002_schedules"
down_revision = "0001_first"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(tables, execution_options={"no_parameters": True})
