"""Vector stores: their files, the chunks of these, and where pgvector is the embeddings of chunks

Additive: processes of the previous release do not know these tables.

`add_embeddings()` makes what needs pgvector. `backburner migrate` calls it each time, so that an
extension that was installed later is used from then on. Only functions of this schema name what the
extension has: it may be in another schema, which is not in the search path.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_TIMESTAMP = sa.DateTime(timezone=True)

_ADD_EMBEDDINGS = """
CREATE FUNCTION add_embeddings() RETURNS boolean LANGUAGE plpgsql AS $add$
DECLARE home text; installed int[];
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'vector_store_chunks'::regclass AND attname = 'embedding' AND NOT attisdropped) THEN
        RETURN true;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'vector') THEN
        IF NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector') THEN
            RETURN false;
        END IF;
        BEGIN
            CREATE EXTENSION vector;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN false;
        END;
    END IF;
    SELECT n.nspname, (regexp_split_to_array(e.extversion, '[^0-9]+'))[1:2]::int[] INTO home, installed
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector';
    IF installed < ARRAY[0, 8] THEN
        RETURN false;
    END IF;
    EXECUTE format('ALTER TABLE vector_store_chunks ADD COLUMN embedding %I.halfvec', home);
    ALTER TABLE vector_store_chunks ALTER COLUMN embedding SET STORAGE PLAIN;
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION embedding_of(value text) RETURNS %1$I.halfvec LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN value::%1$I.halfvec
    $sql$, home);
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION embedding_distance(a %1$I.halfvec, b %1$I.halfvec) RETURNS float8 LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN a OPERATOR(%1$I.<=>) b
    $sql$, home);
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION nearest_chunks(store uuid, dimensions int, wanted text, most int)
        RETURNS TABLE (entry_id uuid, number int, distance float8) LANGUAGE plpgsql AS $nearest$
        BEGIN
            PERFORM set_config('hnsw.ef_search', least(most, 1000)::text, true), set_config('hnsw.iterative_scan', 'strict_order', true);
            RETURN QUERY EXECUTE format(
                'SELECT c.entry_id, c.number, (c.embedding::%1$I.halfvec(%%s)) OPERATOR(%1$I.<=>) (SELECT embedding_of($1)) AS distance
                 FROM vector_store_chunks c WHERE c.store_id = %%L ORDER BY distance LIMIT $2', dimensions, store) USING wanted, most;
        END $nearest$
    $sql$, home);
    RETURN true;
END $add$
"""


def _count(name: str, comment: str | None = None) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment=comment
    )


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
    )


def upgrade() -> None:
    op.create_table(
        "vector_stores",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text()),
        sa.Column("metadata", sa.JSON(), nullable=False),
        _created_at(),
        sa.Column(
            "last_active_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column(
            "expires_after_days", sa.Integer(), comment="of no use; null: it does not expire"
        ),
        sa.Column(
            "expires_at", _TIMESTAMP, comment="`last_active_at` and `expires_after_days` later"
        ),
        sa.Column(
            "embedding_model",
            sa.Text(),
            comment="of all of its chunks; null: they have no embeddings",
        ),
        sa.Column(
            "requested_dimensions",
            sa.Integer(),
            comment="as requests to the model say; null: they say nothing",
        ),
        sa.Column("dimensions", sa.Integer(), comment="of its embeddings; null: it has none yet"),
        sa.Column("language", sa.Text(), nullable=False, comment="the text search configuration"),
        sa.Column(
            "has_index",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="there is an HNSW index of its embeddings",
        ),
        sa.Column("delete_requested_at", _TIMESTAMP, comment="from then on nobody sees it"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vector_stores")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_vector_stores_project_id")
        ),
    )
    op.create_index("ix_vector_stores_project_id", "vector_stores", ["project_id", "id"])
    op.create_index(
        "ix_vector_stores_expires_at",
        "vector_stores",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL AND delete_requested_at IS NULL"),
    )
    op.create_index(
        "ix_vector_stores_deleted",
        "vector_stores",
        ["delete_requested_at"],
        postgresql_where=sa.text("delete_requested_at IS NOT NULL"),
    )
    op.create_table(
        "vector_store_file_batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("store_id", sa.Uuid(), nullable=False),
        _created_at(),
        sa.Column("cancelled_at", _TIMESTAMP),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vector_store_file_batches")),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["vector_stores.id"],
            name=op.f("fk_vector_store_file_batches_store_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_vector_store_file_batches_store_id", "vector_store_file_batches", ["store_id"]
    )
    op.create_table(
        "vector_store_files",
        sa.Column(
            "id", sa.Uuid(), nullable=False, comment="of the entry; the order of a store's files"
        ),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("store_id", sa.Uuid(), nullable=False),
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), comment="null: it came alone"),
        sa.Column("attributes", postgresql.JSONB(), nullable=False),
        sa.Column("max_chunk_tokens", sa.Integer(), nullable=False),
        sa.Column("chunk_overlap_tokens", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), server_default="in_progress", nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        _count("chunks", "stored ones; the number of the next one"),
        _count("usage_bytes", "of the texts and embeddings of its chunks"),
        _created_at(),
        sa.Column(
            "next_attempt_at",
            _TIMESTAMP,
            server_default=sa.func.clock_timestamp(),
            nullable=False,
            comment="before that no other worker ingests it",
        ),
        sa.Column(
            "attempts",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="how often a worker has begun; fences the writes of that worker",
        ),
        sa.Column(
            "failures",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="attempts in a row that ended without a new chunk",
        ),
        sa.Column("delete_requested_at", _TIMESTAMP, comment="from then on nobody sees it"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vector_store_files")),
        sa.ForeignKeyConstraint(
            ["store_id"], ["vector_stores.id"], name=op.f("fk_vector_store_files_store_id")
        ),
    )
    op.create_index(
        "ix_vector_store_files_file_id",
        "vector_store_files",
        ["file_id", "store_id"],
        unique=True,
        postgresql_where=sa.text("delete_requested_at IS NULL"),
    )
    op.create_index("ix_vector_store_files_store_id", "vector_store_files", ["store_id", "id"])
    op.create_index(
        "ix_vector_store_files_batch_id",
        "vector_store_files",
        ["batch_id", "id"],
        postgresql_where=sa.text("batch_id IS NOT NULL"),
    )
    op.create_index("ix_vector_store_files_project_id", "vector_store_files", ["project_id"])
    op.create_index(
        "ix_vector_store_files_waiting",
        "vector_store_files",
        ["project_id", "next_attempt_at"],
        postgresql_where=sa.text("status = 'in_progress' AND delete_requested_at IS NULL"),
    )
    op.create_index(
        "ix_vector_store_files_deleted",
        "vector_store_files",
        ["delete_requested_at"],
        postgresql_where=sa.text("delete_requested_at IS NOT NULL"),
    )
    op.create_table(
        "vector_store_chunks",
        sa.Column("store_id", sa.Uuid(), nullable=False),
        sa.Column("entry_id", sa.Uuid(), nullable=False, comment="vector_store_files.id"),
        sa.Column("number", sa.Integer(), nullable=False, comment="in its file, from 0"),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column(
            "words",
            postgresql.TSVECTOR(),
            nullable=False,
            comment="of its text, and the id of the store as one more word",
        ),
        sa.PrimaryKeyConstraint(
            "store_id", "entry_id", "number", name=op.f("pk_vector_store_chunks")
        ),
        sa.ForeignKeyConstraint(
            ["entry_id"],
            ["vector_store_files.id"],
            name=op.f("fk_vector_store_chunks_entry_id"),
        ),
    )
    op.create_index("ix_vector_store_chunks_entry_id", "vector_store_chunks", ["entry_id"])
    op.create_index(
        "ix_vector_store_chunks_words", "vector_store_chunks", ["words"], postgresql_using="gin"
    )
    op.execute(_ADD_EMBEDDINGS)
    op.execute("SELECT add_embeddings()")


def downgrade() -> None:
    op.drop_table("vector_store_chunks")
    op.drop_table("vector_store_files")
    op.drop_table("vector_store_file_batches")
    op.drop_table("vector_stores")
    op.execute("DROP FUNCTION IF EXISTS nearest_chunks")
    op.execute("DROP FUNCTION IF EXISTS embedding_of")
    op.execute("DROP FUNCTION IF EXISTS embedding_distance")
    op.execute("DROP FUNCTION add_embeddings")
