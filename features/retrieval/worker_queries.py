"""What workers do with vector stores: the ingest of files, HNSW indexes, and the purge.

Workers take entries for a lease, and store their chunks.

An entry's `attempts` is the fence: each write carries the number with which its worker has taken
the entry, and does nothing once another worker has. `chunks` is the number of the next chunk.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import LATEST, projects_with
from models.db.statement import Query, column
from models.wire.token_counts import UsageKind


@dataclass(frozen=True, slots=True)
class TakenEntry:
    """A file that this worker ingests now."""

    id: UUID
    attempts: int
    """the number that each write must carry"""
    project_id: UUID
    store_id: UUID
    file_id: UUID
    chunks: int
    """stored ones; the number of the next one"""
    max_chunk_tokens: int
    chunk_overlap_tokens: int
    failures: int
    """earlier attempts in a row that ended without a new chunk"""
    crashes: int
    """earlier attempts in a row, without a new chunk, whose worker died"""
    age: float
    """seconds since the file was added"""
    embedding_model: str | None
    """None: its chunks get no embeddings"""
    requested_dimensions: int | None
    is_gone: bool
    """its store was deleted"""


_WAITS = "e.status = 'in_progress' AND e.delete_requested_at IS NULL"

IS_DUE = column(
    f"""
    SELECT EXISTS (SELECT 1 FROM vector_store_files e WHERE {_WAITS} AND e.next_attempt_at <= clock_timestamp()) AS due
    """,
    bool,
)
"""Whether TAKE_ENTRIES may find some."""
TAKE_ENTRIES = Query(
    f"""
    WITH RECURSIVE {projects_with("vector_store_files", "e", _WAITS)},
         used AS (
             SELECT p.id AS project_id, (SELECT count(*) FROM unnest(CAST(:busy AS uuid[])) AS b (id)
                                         WHERE b.id = p.id) AS files FROM project p),
         placed AS (
             SELECT first.id, used.files, row_number() OVER (ORDER BY used.files, random()) AS place FROM used
             CROSS JOIN LATERAL (
                 SELECT e.id FROM vector_store_files e
                 WHERE e.project_id = used.project_id AND {_WAITS} AND e.next_attempt_at <= clock_timestamp()
                 ORDER BY e.next_attempt_at LIMIT 1 FOR UPDATE SKIP LOCKED) first),
         due AS (SELECT id FROM placed WHERE place <= CAST(:free AS int) OR files = 0
                 ORDER BY place LIMIT CAST(:free_for_newcomers AS int))
    UPDATE vector_store_files e SET attempts = e.attempts + 1, failures = e.failures + 1, crashes = e.crashes + 1,
           next_attempt_at = clock_timestamp() + CAST(:lease AS interval)
    FROM due, vector_stores s WHERE e.id = due.id AND s.id = e.store_id
    RETURNING e.id, e.attempts, e.project_id, e.store_id, e.file_id, e.chunks, e.max_chunk_tokens,
        e.chunk_overlap_tokens, e.failures - 1 AS failures, e.crashes - 1 AS crashes,
              extract(epoch FROM clock_timestamp() - e.created_at)::float8 AS age, s.embedding_model,
              s.requested_dimensions,
              s.delete_requested_at IS NOT NULL AS is_gone
    """,
    TakenEntry,
)
"""Takes entries for as long as the lease: of each project the one that has waited longest. Projects
with fewer files in work here go first, `busy` has one id for each file; of equal ones some by chance.
Up to `free` entries of any projects, and up to `free_for_newcomers` of those that have none in work.
If this worker dies, another one takes them when the lease has ended: `crashes` counts those that
were not given back."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """How the ingest of a file has ended in another store."""

    code: str
    message: str


KNOWN_FAILURE = Query(
    """
    SELECT e.error_code AS code, e.error_message AS message FROM vector_store_files e
    WHERE e.file_id = :file AND e.project_id = :project AND e.delete_requested_at IS NULL AND e.status = 'failed'
      AND e.error_code IN ('invalid_file', 'unsupported_file')
        AND e.created_at > clock_timestamp() - interval '1 hour' LIMIT 1
    """,
    KnownFailure,
)
"""Why the text of a file could not be read a short time ago. Its bytes are the same, so another try
costs as much and fails too, unless limits were changed meanwhile."""

_IS_OURS = "e.id = :id AND e.attempts = :attempts AND e.status = 'in_progress' AND e.delete_requested_at IS NULL"


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """What is stored of an entry."""

    chunks: int
    """the number of the next chunk"""
    dimensions: int | None
    """of the embeddings in its store; None: it has none yet"""


KEEP_ENTRY = Query(
    f"""
    UPDATE vector_store_files e SET next_attempt_at = clock_timestamp() + CAST(:lease AS interval) FROM vector_stores s
    WHERE {_IS_OURS} AND s.id = e.store_id AND s.delete_requested_at IS NULL RETURNING e.chunks, s.dimensions
    """,
    KeptEntry,
)
"""Extends the lease. No row: another worker has the entry, or it was cancelled or deleted, or its
store was."""


def _store_chunks(has_embeddings: bool) -> Query[int]:
    name, value = (", embedding", ", embedding_of(c.embedding)") if has_embeddings else ("", "")
    return column(
        f"""
        WITH s AS MATERIALIZED (
                 SELECT s.id, s.language, s.dimensions FROM vector_stores s
                 WHERE s.id = :store AND s.delete_requested_at IS NULL
                   AND (CAST(:dimensions AS int) IS NULL OR s.dimensions IS NULL OR s.dimensions = :dimensions)
                       FOR KEY SHARE),
             entry AS (
                 UPDATE vector_store_files e
                 SET chunks = e.chunks + :count, usage_bytes = e.usage_bytes + :bytes, failures = 0, crashes = 1,
                     next_attempt_at = clock_timestamp() + CAST(:lease AS interval)
                 FROM s WHERE {_IS_OURS} AND e.chunks = :first AND e.store_id = s.id
                 RETURNING e.id, e.project_id, e.store_id, e.chunks),
             measured AS (
                 UPDATE vector_stores SET dimensions = :dimensions FROM entry, s
                 WHERE vector_stores.id = entry.store_id AND s.dimensions IS NULL
                   AND CAST(:dimensions AS int) IS NOT NULL),
             stored AS (
                 INSERT INTO vector_store_chunks (store_id, entry_id, number, project_id, tokens, text, words{name})
                 SELECT entry.store_id, entry.id, CAST(:first AS int) + c.nr - 1, entry.project_id, c.tokens, c.text,
                        to_tsvector(s.language::regconfig,
                                    c.text) || array_to_tsvector(ARRAY['§' || replace(s.id::text, '-', '')]){value}
                 FROM entry, s,
                     unnest(CAST(:texts AS text[]), CAST(:tokens AS int[]), CAST(:embeddings AS text[])) WITH ORDINALITY
                         AS c (text, tokens, embedding, nr)),
             used AS (
                 INSERT INTO usage_entries (project_id, api_key_id, model, upstream, service_tier, kind, requests,
                                            input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost)
                 SELECT entry.project_id, NULL, CAST(:model AS text), CAST(:upstream AS text), NULL,
                        '{UsageKind.EMBEDDINGS}', 1, CAST(:input_tokens AS bigint), 0, 0, 0, CAST(:cost AS bigint)
                 FROM entry WHERE CAST(:model AS text) IS NOT NULL)
        SELECT chunks FROM entry
        """,
        int,
    )


STORE_CHUNKS = {"plain": _store_chunks(False), "embedded": _store_chunks(True)}
"""Stores the chunks from the number `first` on, and what their embeddings have used, and extends the
lease. No row, and nothing is stored: the number of the next chunk is another one, another worker has
the entry, it or its store is gone, or the store's embeddings have other dimensions."""

END_ENTRY = column(
    f"""
    WITH ended AS (UPDATE vector_store_files e SET status = :status, error_code = :code, error_message = :message,
                       usage_bytes = CASE WHEN CAST(:code AS text) IS NULL THEN e.usage_bytes ELSE 0 END
                   WHERE {_IS_OURS} AND (CAST(:chunks AS int) IS NULL OR e.chunks = :chunks)
                   RETURNING e.id, e.store_id),
         used AS (UPDATE vector_stores s SET last_active_at = clock_timestamp(),
                         expires_at = clock_timestamp() + s.expires_after_days * interval '1 day'
                  FROM ended WHERE s.id = ended.store_id AND s.expires_after_days IS NOT NULL
                    AND s.delete_requested_at IS NULL
                    AND s.last_active_at < clock_timestamp() - interval '1 minute')
    SELECT id FROM ended
    """,
    UUID,
)
"""`completed` or `failed`; `code` and `message` are null for the first. `chunks`: how many the file
has; null: that does not matter. No row: a failover has lost some of them, or as of KEEP_ENTRY. The
store was used: it expires so long after the last ingest, also if it was over meanwhile.
The purge deletes the chunks of a file that `failed`."""

DEFER_ENTRY = column(
    f"""
    UPDATE vector_store_files e SET next_attempt_at = clock_timestamp() + CAST(:pause AS interval),
           crashes = greatest(e.crashes - 1, 0) WHERE {_IS_OURS} RETURNING e.id
    """,
    UUID,
)
"""Gives the entry back; it is taken again after `pause`."""

HIDE_ENTRY = column(
    f"UPDATE vector_store_files e SET delete_requested_at = clock_timestamp() WHERE {_IS_OURS} RETURNING e.id",
    UUID,
)
"""Its file or its store is gone."""

REPAIR_ENTRIES = column(
    f"""
    UPDATE vector_store_files SET next_attempt_at = clock_timestamp()
    WHERE status = 'in_progress' AND delete_requested_at IS NULL AND next_attempt_at > {LATEST} AND attempts = 0
    RETURNING 1 AS repaired
    """,
    int,
)
"""Files of vector stores that no worker has taken yet."""


# --- indexes of large stores (features/retrieval/vector_index.py) ---

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


# --- the purge: entries are hidden, then chunks are deleted, then what had them ---
# Each statement touches at most `rows` rows, so that a store of any size delays no other statement.

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
before (END_ENTRY)."""

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
