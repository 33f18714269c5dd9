"""The HNSW indexes of large vector stores (features/retrieval/vector_index.py)."""

from dataclasses import dataclass
from uuid import UUID

from models.db.statement import Query, column

_PREFIX = "ix_vector_store_chunks_hnsw_"


def index_name(store: UUID) -> str:
    """The name of a store's index."""
    return f"{_PREFIX}{store.hex}"


@dataclass(frozen=True, slots=True)
class WantedIndex:
    """An index that is to be made."""

    dimensions: int
    home: str
    """the schema of pgvector"""


INDEX_WANTED = Query(
    """
    SELECT s.dimensions, (SELECT n.nspname::text FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                          WHERE x.extname = 'vector') AS home
    FROM vector_stores s
    WHERE s.id = :store AND NOT s.has_index AND s.dimensions IS NOT NULL AND s.delete_requested_at IS NULL
      AND (SELECT coalesce(sum(e.chunks), 0) FROM vector_store_files e
           WHERE e.store_id = s.id AND e.delete_requested_at IS NULL) >= CAST(:chunks AS bigint)
    """,
    WantedIndex,
)
"""No row: the store has an index, has fewer than `chunks` chunks or no embeddings, or is gone."""


@dataclass(frozen=True, slots=True)
class SweptStore:
    """A store, for the sweep."""

    id: UUID
    wants_index: bool
    """it has embeddings of many chunks and no index"""


SWEEP_STORES = Query(
    """
    SELECT s.id, CASE WHEN s.has_index OR s.dimensions IS NULL THEN false
        ELSE (SELECT coalesce(sum(e.chunks), 0) FROM vector_store_files e
              WHERE e.store_id = s.id AND e.delete_requested_at IS NULL) >= CAST(:chunks AS bigint) END AS wants_index
    FROM vector_stores s WHERE s.id > CAST(:after AS uuid) AND s.delete_requested_at IS NULL
    ORDER BY s.id LIMIT CAST(:rows AS int)
    """,
    SweptStore,
)
"""The next stores after an id, and which of them have at least `chunks` chunks with embeddings and
no index."""

SET_HAS_INDEX = column(
    "UPDATE vector_stores SET has_index = true WHERE id = :store AND delete_requested_at IS NULL RETURNING id",
    UUID,
)
"""From now on searches use the index. No row: the store is gone, and the purge drops the index."""

TRY_INDEX_LOCK = column("SELECT pg_try_advisory_lock(:key) AS locked", bool)
"""For the session. False: another worker makes or drops an index now."""

UNUSED_INDEXES = column(
    f"""
    SELECT c.relname::text AS name FROM pg_class c
    WHERE c.relkind = 'i' AND c.relnamespace = to_regnamespace(current_schema())
      AND c.relname LIKE '{_PREFIX.replace("_", chr(92) + "_")}%'
      AND NOT EXISTS (SELECT 1 FROM vector_stores s
                      WHERE s.has_index AND s.delete_requested_at IS NULL
                        AND '{_PREFIX}' || replace(s.id::text, '-', '') = c.relname)
    """,
    str,
)
"""Indexes of no store that uses one. Those that are being made are among them: call it with the
lock."""
