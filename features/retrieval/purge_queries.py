"""The purge of vector stores: first entries are hidden, then chunks are deleted, then what had them.

Each statement touches at most `rows` rows, so that a store of any size delays no other statement.
"""

from uuid import UUID

from models.db.statement import column

_HAS_ENTRIES = """EXISTS (SELECT 1 FROM vector_store_files n
                          WHERE n.store_id = s.id AND n.delete_requested_at IS NULL OFFSET 0)"""

_IS_INGESTED = """NOT EXISTS (SELECT 1 FROM vector_store_files w
                              WHERE w.store_id = s.id AND w.status = 'in_progress'
                                AND w.delete_requested_at IS NULL OFFSET 0)"""
"""None of the files of store `s` is still to be ingested."""

HIDE_ENTRIES = column(
    f"""
    WITH gone AS MATERIALIZED (
        SELECT e.id FROM vector_store_files e
        WHERE e.store_id = coalesce(
                  (SELECT s.id FROM vector_stores s WHERE s.delete_requested_at IS NOT NULL AND {_HAS_ENTRIES}
                   ORDER BY s.delete_requested_at LIMIT 1),
                  (SELECT s.id FROM vector_stores s WHERE s.expires_at < statement_timestamp()
                   AND s.delete_requested_at IS NULL AND {_HAS_ENTRIES} AND {_IS_INGESTED}
                   ORDER BY s.expires_at LIMIT 1))
          AND e.delete_requested_at IS NULL
        LIMIT :rows)
    UPDATE vector_store_files e SET delete_requested_at = clock_timestamp() FROM gone
    WHERE e.id = gone.id AND e.delete_requested_at IS NULL RETURNING e.id
    """,
    UUID,
)
"""Hides files of a store that was deleted or has expired. No row: no such store has any. The ingest
of a file uses its store, so a store with one that waits for it loses nothing: it does not expire
before (ingest.END_ENTRY)."""

_HAS_USELESS_CHUNKS = (
    "e.status IN ('failed', 'cancelled') AND e.chunks > 0 AND e.delete_requested_at IS NULL"
)

_HAS_USELESS_CHUNKS = (
    "e.status IN ('failed', 'cancelled') AND e.chunks > 0 AND e.delete_requested_at IS NULL"
)

DELETE_CHUNKS = column(
    f"""
    WITH gone AS MATERIALIZED (
        SELECT c.store_id, c.entry_id, c.number FROM (
            (SELECT e.id FROM vector_store_files e WHERE e.delete_requested_at IS NOT NULL
             ORDER BY e.delete_requested_at LIMIT :rows)
            UNION ALL (SELECT e.id FROM vector_store_files e WHERE {_HAS_USELESS_CHUNKS} ORDER BY e.id LIMIT :rows)) e
        JOIN vector_store_chunks c ON c.entry_id = e.id LIMIT :rows)
    DELETE FROM vector_store_chunks c USING gone
    WHERE c.store_id = gone.store_id AND c.entry_id = gone.entry_id AND c.number = gone.number RETURNING c.entry_id
    """,
    UUID,
)
"""Deletes chunks of hidden entries, and of those that have failed or were cancelled."""

FORGET_CHUNKS = column(
    f"""
    UPDATE vector_store_files SET chunks = 0 WHERE id IN (
        SELECT e.id FROM vector_store_files e
        WHERE {_HAS_USELESS_CHUNKS} AND NOT EXISTS (SELECT 1 FROM vector_store_chunks c
                                                    WHERE c.entry_id = e.id OFFSET 0)
        ORDER BY e.id LIMIT :rows)
    RETURNING id
    """,
    UUID,
)
"""Sets the number of chunks of entries that have failed or were cancelled, and have none any more."""

DELETE_ENTRIES = column(
    """
    DELETE FROM vector_store_files WHERE id IN (
        SELECT e.id FROM vector_store_files e
        WHERE e.delete_requested_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM vector_store_chunks c
                                                                WHERE c.entry_id = e.id OFFSET 0)
        ORDER BY e.delete_requested_at LIMIT :rows)
    RETURNING id
    """,
    UUID,
)
"""Deletes hidden entries that have no chunks any more."""

HIDE_EXPIRED_STORES = column(
    f"""
    WITH gone AS MATERIALIZED (
        SELECT s.id FROM vector_stores s WHERE s.expires_at < statement_timestamp() - CAST(:keep AS interval)
          AND s.delete_requested_at IS NULL AND {_IS_INGESTED}
        ORDER BY s.expires_at LIMIT :rows)
    UPDATE vector_stores s SET delete_requested_at = clock_timestamp() FROM gone
    WHERE s.id = gone.id AND s.delete_requested_at IS NULL RETURNING s.id
    """,
    UUID,
)
"""Hides stores that have expired, when they were shown for `keep`."""

DELETE_STORES = column(
    """
    DELETE FROM vector_stores WHERE id IN (
        SELECT s.id FROM vector_stores s
        WHERE s.delete_requested_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM vector_store_files e
                                                                WHERE e.store_id = s.id OFFSET 0)
        ORDER BY s.delete_requested_at LIMIT :rows)
    RETURNING id
    """,
    UUID,
)
"""Deletes hidden stores that have no files any more, and the batches of their files."""
