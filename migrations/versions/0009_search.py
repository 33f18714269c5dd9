"""What operators find responses by, and their saved filters"""

from alembic import op

revision = "0009_search"
down_revision = "0008_teams"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE search_documents (
            response_id uuid NOT NULL,
            has_text boolean NOT NULL,
            document tsvector NOT NULL,
            CONSTRAINT pk_search_documents PRIMARY KEY (response_id),
            CONSTRAINT fk_search_documents_response_id_responses
                FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
        )
    """)
    op.execute(
        "CREATE INDEX ix_search_documents_document ON search_documents USING gin (document)"
        " WITH (gin_pending_list_limit = 512)"
    )
    op.execute("""
        CREATE TABLE search_walk (
            single boolean DEFAULT true NOT NULL,
            position uuid DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff' NOT NULL,
            next_at timestamptz DEFAULT '-infinity' NOT NULL,
            completed_at timestamptz,
            CONSTRAINT pk_search_walk PRIMARY KEY (single),
            CONSTRAINT ck_search_walk_single CHECK (single)
        )
    """)
    op.execute("INSERT INTO search_walk DEFAULT VALUES")
    op.execute("""
        CREATE TABLE console_filters (
            login text NOT NULL,
            name text NOT NULL,
            query text NOT NULL,
            created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT pk_console_filters PRIMARY KEY (login, name)
        )
    """)
