"""What has travelled with its project between cells"""

from alembic import op

revision = "0017_moved_things"
down_revision = "0016_log_partitions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before do not know these tables.
    op.execute("""
        CREATE TABLE moved_things (
            id uuid NOT NULL,
            project_id uuid NOT NULL,
            is_copy boolean NOT NULL,
            CONSTRAINT pk_moved_things PRIMARY KEY (id),
            CONSTRAINT fk_moved_things_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
        )
    """)
    op.execute("CREATE INDEX ix_moved_things_project_id ON moved_things (project_id)")
    op.execute("""
        CREATE TABLE project_moves (
            project_id uuid NOT NULL,
            run uuid NOT NULL,
            began_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT pk_project_moves PRIMARY KEY (project_id),
            CONSTRAINT fk_project_moves_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
        )
    """)
