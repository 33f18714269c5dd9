"""Containers in which models run code, their files, and what ran in them"""

from alembic import op

revision = "0012_containers"
down_revision = "0011_fence"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before do not know these tables.
    op.execute("""
        CREATE TABLE containers (
            id uuid NOT NULL,
            project_id uuid NOT NULL,
            api_key_id uuid,
            name text NOT NULL,
            memory_limit text,
            idle_time interval NOT NULL,
            created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            last_active_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            sandbox text,
            session text,
            opening_until timestamptz,
            stop_requested_at timestamptz,
            ending_until timestamptz,
            deleted_at timestamptz,
            CONSTRAINT pk_containers PRIMARY KEY (id),
            CONSTRAINT fk_containers_project_id FOREIGN KEY (project_id) REFERENCES projects (id)
        )
    """)
    op.execute("CREATE INDEX ix_containers_project_id ON containers (project_id, id)")
    op.execute("CREATE INDEX ix_containers_last_active_at ON containers (last_active_at)")
    op.execute(
        "CREATE INDEX ix_containers_sessions ON containers (project_id) "
        "WHERE sandbox IS NOT NULL OR opening_until IS NOT NULL"
    )
    op.execute(
        "CREATE INDEX ix_containers_deleted_at ON containers (deleted_at) WHERE deleted_at IS NOT NULL"
    )
    op.execute("""
        CREATE TABLE container_files (
            id uuid NOT NULL,
            container_id uuid NOT NULL,
            path text NOT NULL,
            file_id uuid NOT NULL,
            bytes bigint NOT NULL,
            source text NOT NULL,
            session text,
            created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT pk_container_files PRIMARY KEY (id),
            CONSTRAINT fk_container_files_container_id FOREIGN KEY (container_id)
                REFERENCES containers (id) ON DELETE CASCADE
        )
    """)
    op.execute(
        "CREATE UNIQUE INDEX ix_container_files_path ON container_files (container_id, path)"
    )
    op.execute("""
        CREATE TABLE container_cells (
            id text NOT NULL,
            container_id uuid NOT NULL,
            project_id uuid NOT NULL,
            session text NOT NULL,
            began_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            ended_at timestamptz,
            cpu_ms bigint DEFAULT 0 NOT NULL,
            wall_ms bigint DEFAULT 0 NOT NULL,
            CONSTRAINT pk_container_cells PRIMARY KEY (id)
        )
    """)
    op.execute("CREATE INDEX ix_container_cells_container_id ON container_cells (container_id)")
    op.execute(
        "CREATE INDEX ix_container_cells_project_id ON container_cells (project_id, began_at)"
    )
    op.execute("CREATE INDEX ix_container_cells_began_at ON container_cells USING brin (began_at)")
