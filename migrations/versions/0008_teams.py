"""Logins of projects to the console, and projects by name"""

from alembic import op

revision = "0008_teams"
down_revision = "0007_batch_retries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: the release before ignores the column, and refuses a session of a project, whose
    # role it does not know.
    op.execute("ALTER TABLE console_sessions ADD COLUMN api_key_id uuid")
    op.execute("CREATE INDEX ix_projects_lower_name ON projects (lower(name), id)")
