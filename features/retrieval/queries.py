"""Vector stores, the files in them, and the batches with which files come (docs/vector-stores.md).

An *entry* is a file in a store. Files are counted when a store is read, so that no count can be
wrong. What is hidden (`delete_requested_at`) is seen by nobody, and the purge deletes its rows.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.audit import recorded
from models.db.queries.common import pages_of
from models.db.queries.file_contents import IS_VISIBLE
from models.db.statement import Query, Statement, column


@dataclass(frozen=True, slots=True)
class StoreRow:
    """A vector store."""

    id: UUID
    name: str
    description: str | None
    metadata: dict[str, str]
    created_at: int
    """whole seconds since the epoch, as the two below"""
    last_active_at: int
    expires_at: int | None
    expires_after_days: int | None
    is_expired: bool
    in_progress: int
    """files, by their status"""
    completed: int
    failed: int
    cancelled: int
    usage_bytes: int


_COUNTS = """count(*) FILTER (WHERE e.status = 'in_progress') AS in_progress,
    count(*) FILTER (WHERE e.status = 'completed') AS completed,
            count(*) FILTER (WHERE e.status = 'failed') AS failed,
            count(*) FILTER (WHERE e.status = 'cancelled') AS cancelled"""
IS_EXPIRED = "coalesce(s.expires_at <= statement_timestamp(), false)"
"""Store `s` has expired: it is shown, and has no files."""
_COLUMNS = f"""s.id, s.name, s.description, s.metadata, floor(extract(epoch FROM s.created_at))::bigint AS created_at,
           floor(extract(epoch FROM s.last_active_at))::bigint AS last_active_at,
           floor(extract(epoch FROM s.expires_at))::bigint AS expires_at,
           s.expires_after_days, {IS_EXPIRED} AS is_expired, n.in_progress, n.completed, n.failed, n.cancelled,
           n.usage_bytes"""
_WITH_COUNTS = f"""CROSS JOIN LATERAL (
            SELECT {_COUNTS}, coalesce(sum(e.usage_bytes), 0)::bigint AS usage_bytes
            FROM vector_store_files e WHERE e.store_id = s.id AND e.delete_requested_at IS NULL
              AND NOT {IS_EXPIRED}) n"""

INSERT_STORE = Statement("""
    INSERT INTO vector_stores (id, project_id, name, description, metadata, expires_after_days, expires_at,
                               embedding_model, requested_dimensions, language)
    VALUES (:id, :project, :name, :description, :metadata, :days,
            clock_timestamp() + CAST(:days AS int) * interval '1 day', :model, :dimensions, :language)
""")
"""`days` null: it does not expire. `model` null: its chunks get no embeddings."""

FIND_STORE = Query(
    f"""
    SELECT {_COLUMNS} FROM vector_stores s {_WITH_COUNTS}
    WHERE s.id = :id AND s.project_id = :project AND s.delete_requested_at IS NULL
    """,
    StoreRow,
)
"""No row: the project has no such store."""


@dataclass(frozen=True, slots=True)
class PagedStore(StoreRow):
    """A store of a page."""

    found: int
    """stores that the page would have if it were not bounded in bytes"""


LIST_STORES = pages_of(
    f"""
    SELECT {_COLUMNS} FROM vector_stores s {_WITH_COUNTS}
    WHERE s.project_id = :project AND s.delete_requested_at IS NULL
    """,
    "s.id",
    PagedStore,
    has_until=True,
    is_bounded=True,
)
"""The stores behind `after` and before `until`, by `order` of their creation; null: no bound."""


@dataclass(frozen=True, slots=True)
class LockedStore:
    """A store to which files are added."""

    is_expired: bool
    files: int


LOCK_STORE = Query(
    f"""
    WITH s AS MATERIALIZED (SELECT * FROM vector_stores s
                            WHERE s.id = :store AND s.project_id = :project AND s.delete_requested_at IS NULL
                            FOR NO KEY UPDATE)
    SELECT {IS_EXPIRED} AS is_expired, (SELECT count(*) FROM vector_store_files e
                                        WHERE e.store_id = s.id AND e.delete_requested_at IS NULL) AS files FROM s
    """,
    LockedStore,
)
"""Files are added to a store by one transaction at a time. No row: the project has no such store."""

UPDATE_STORE = column(
    f"""
    UPDATE vector_stores s
    SET name = coalesce(CAST(:name AS text), s.name), metadata = coalesce(CAST(:metadata AS json), s.metadata),
        last_active_at = clock_timestamp(),
        expires_after_days = CASE WHEN :set_expiry THEN CAST(:days AS int) ELSE s.expires_after_days END,
        expires_at = clock_timestamp() + CASE WHEN :set_expiry THEN CAST(:days AS int)
            ELSE s.expires_after_days END * interval '1 day'
    WHERE s.id = :id AND s.project_id = :project AND s.delete_requested_at IS NULL AND NOT {IS_EXPIRED} RETURNING s.id
    """,
    UUID,
)
"""`name` and `metadata` null: unchanged. No row: the project has no such store, or it has expired."""

DELETE_STORE = column(
    f"""
    WITH hidden AS (UPDATE vector_stores s SET delete_requested_at = clock_timestamp()
                    WHERE s.id = :id AND s.project_id = :project AND s.delete_requested_at IS NULL RETURNING s.id),
         audited AS ({recorded("hidden")})
    SELECT id FROM hidden
    """,
    UUID,
)
"""Hides a store, so that the purge deletes it, and adds the entry to the audit log. No row: the
project has no such store."""

# --- quotas of a project ---


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """What a project has in its vector stores."""

    stores: int
    bytes: int


STORED_VECTORS = Query(
    f"""
    SELECT (SELECT count(*) FROM vector_stores s
            WHERE s.project_id = :project AND s.delete_requested_at IS NULL AND NOT {IS_EXPIRED}) AS stores,
           (SELECT coalesce(sum(e.usage_bytes), 0)::bigint FROM vector_store_files e
            WHERE e.project_id = :project AND e.delete_requested_at IS NULL) AS bytes
    """,
    StoredVectors,
)
"""Always one row."""

# --- entries ---


@dataclass(frozen=True, slots=True)
class EntryRow:
    """A file in a store."""

    id: UUID
    store_id: UUID
    file_id: UUID
    attributes: dict[str, str | float | bool]
    max_chunk_tokens: int
    chunk_overlap_tokens: int
    status: str
    error_code: str | None
    error_message: str | None
    usage_bytes: int
    created_at: int
    """whole seconds since the epoch"""


_ENTRY = """e.id, e.store_id, e.file_id, e.attributes, e.max_chunk_tokens, e.chunk_overlap_tokens, e.status,
    e.error_code, e.error_message, e.usage_bytes,
            floor(extract(epoch FROM e.created_at))::bigint AS created_at"""

VISIBLE_FILES = column(
    f"SELECT f.id FROM files f WHERE f.id = ANY(CAST(:ids AS uuid[])) AND f.project_id = :project AND {IS_VISIBLE}",
    UUID,
)
"""Those of the files `ids` that the project has."""

HIDE_ENDED_ENTRIES = column(
    """
    UPDATE vector_store_files e SET delete_requested_at = clock_timestamp()
    WHERE e.store_id = :store AND e.file_id = ANY(CAST(:files AS uuid[])) AND e.delete_requested_at IS NULL
      AND e.status IN ('failed', 'cancelled') RETURNING e.id
    """,
    UUID,
)
"""Hides the entries of these files that have failed or were cancelled: the files are added again."""

INSERT_ENTRIES = column(
    """
    INSERT INTO vector_store_files (id, project_id, store_id, file_id, batch_id, attributes, max_chunk_tokens,
                                    chunk_overlap_tokens)
    SELECT given.id, :project, :store, given.file, :batch, given.attributes::jsonb, given.max_tokens, given.overlap
    FROM unnest(CAST(:ids AS uuid[]), CAST(:files AS uuid[]), CAST(:attributes AS text[]), CAST(:max_tokens AS int[]),
                CAST(:overlaps AS int[]))
         AS given (id, file, attributes, max_tokens, overlap)
    ORDER BY given.file
    ON CONFLICT (file_id, store_id) WHERE delete_requested_at IS NULL
    DO UPDATE SET batch_id = coalesce(excluded.batch_id, vector_store_files.batch_id),
                  attributes = CASE WHEN excluded.attributes = '{}' THEN vector_store_files.attributes
                      ELSE excluded.attributes END
    RETURNING file_id
    """,
    UUID,
)
"""Adds files to a store, each once. One that is there already is not ingested again: it gets the
batch, and the attributes if there are any."""

FIND_ENTRY = Query(
    f"""
    SELECT {_ENTRY} FROM vector_store_files e
    WHERE e.file_id = :id AND e.store_id = :store AND e.delete_requested_at IS NULL
    """,
    EntryRow,
)
"""`id`: of the file. No row: the store does not have it."""


@dataclass(frozen=True, slots=True)
class PagedEntry(EntryRow):
    """An entry of a page."""

    found: int
    """entries that the page would have if it were not bounded in bytes"""


LIST_ENTRIES = pages_of(
    f"""
    SELECT {_ENTRY} FROM vector_store_files e
    WHERE e.store_id = :store AND e.delete_requested_at IS NULL
      AND (CAST(:status AS text) IS NULL OR e.status = :status)
      AND (CAST(:batch AS uuid) IS NULL OR e.batch_id = :batch)
    """,
    "e.id",
    PagedEntry,
    has_until=True,
    is_bounded=True,
)
"""The entries of a store behind the entry `after` and before `until`, in the order in which they
came. Nulls: whatever their status is, of all batches, without a bound."""

UPDATE_ATTRIBUTES = Query(
    f"""
    UPDATE vector_store_files e SET attributes = CAST(:attributes AS jsonb)
    WHERE e.file_id = :file AND e.store_id = :store AND e.delete_requested_at IS NULL RETURNING {_ENTRY}
    """,
    EntryRow,
)
"""No row: the store does not have the file."""

REMOVE_ENTRY = column(
    f"""
    WITH hidden AS (UPDATE vector_store_files e SET delete_requested_at = clock_timestamp()
                    WHERE e.file_id = :file AND e.store_id = :store AND e.delete_requested_at IS NULL RETURNING e.id),
         audited AS ({recorded("hidden")})
    SELECT id FROM hidden
    """,
    UUID,
)
"""Removes a file from a store, and adds the entry to the audit log. No row: the store does not have
it."""

CHUNK_TEXTS = column(
    """
    SELECT c.text FROM vector_store_chunks c WHERE c.store_id = :store AND c.entry_id = :entry AND c.number >= :first
    ORDER BY c.number LIMIT :limit
    """,
    str,
)
"""The texts of an entry's chunks from the number `first` on."""

# --- batches of files ---


@dataclass(frozen=True, slots=True)
class FileBatchRow:
    """A batch of files of a store."""

    id: UUID
    store_id: UUID
    created_at: int
    """whole seconds since the epoch"""
    is_cancelled: bool
    in_progress: int
    completed: int
    failed: int
    cancelled: int


INSERT_FILE_BATCH = Statement(
    "INSERT INTO vector_store_file_batches (id, store_id) VALUES (:batch, :store)"
)

FIND_FILE_BATCH = Query(
    f"""
    SELECT b.id, b.store_id, floor(extract(epoch FROM b.created_at))::bigint AS created_at,
           b.cancelled_at IS NOT NULL AS is_cancelled,
           n.in_progress, n.completed, n.failed, n.cancelled
    FROM vector_store_file_batches b
    CROSS JOIN LATERAL (SELECT {_COUNTS} FROM vector_store_files e
                        WHERE e.batch_id = b.id AND e.delete_requested_at IS NULL) n
    WHERE b.id = :id AND b.store_id = :store
    """,
    FileBatchRow,
)
"""No row: the store has no such batch."""

CANCEL_FILE_BATCH = column(
    f"""
    WITH cancelled AS (UPDATE vector_store_file_batches SET cancelled_at = coalesce(cancelled_at, clock_timestamp())
                       WHERE id = :id AND store_id = :store
                         AND (cancelled_at IS NOT NULL OR EXISTS (SELECT 1 FROM vector_store_files e
                                                                  WHERE e.batch_id = :id AND e.status = 'in_progress'
                                                                    AND e.delete_requested_at IS NULL))
                       RETURNING id),
         entries AS (UPDATE vector_store_files e SET status = 'cancelled', usage_bytes = 0 FROM cancelled
                     WHERE e.batch_id = cancelled.id AND e.status = 'in_progress' AND e.delete_requested_at IS NULL
                     RETURNING e.id),
         audited AS ({recorded("entries")})
    SELECT id FROM cancelled
    """,
    UUID,
)
"""Cancels what is not ingested yet, and adds the entry to the audit log if there is such a file. No
row: all of it is, or there is no such batch."""

# --- operators ---


@dataclass(frozen=True, slots=True)
class ListedStore:
    """A vector store as operators see it."""

    id: UUID
    project: str
    """its name"""
    name: str
    created_at: datetime
    last_active_at: datetime
    expires_at: datetime | None
    is_expired: bool
    embedding_model: str | None
    """null: its chunks have no embeddings"""
    dimensions: int | None
    has_index: bool
    counted: int
    """files that the next five numbers are about: the newest ones"""
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    usage_bytes: int

    @property
    def state(self) -> str:
        """`expired`, or what its files are: `failed` if one has, `in_progress`, else `completed`."""
        if self.is_expired:
            return "expired"
        if self.failed:
            return "failed"
        return "in_progress" if self.in_progress else "completed"


def _listed_stores(condition: str) -> Query[ListedStore]:
    return Query(
        f"""
        SELECT s.id, p.name AS project, s.name, s.created_at, s.last_active_at, s.expires_at,
               {IS_EXPIRED} AS is_expired, s.embedding_model, s.dimensions,
               s.has_index, n.counted, n.in_progress, n.completed, n.failed, n.cancelled, n.usage_bytes
        FROM (SELECT * FROM vector_stores s WHERE s.delete_requested_at IS NULL AND {condition}
              ORDER BY s.id DESC LIMIT :max_rows) s
        JOIN projects p ON p.id = s.project_id
        CROSS JOIN LATERAL (
            SELECT count(*) AS counted, {_COUNTS}, coalesce(sum(e.usage_bytes), 0)::bigint AS usage_bytes
            FROM (SELECT * FROM vector_store_files e
                  WHERE e.store_id = s.id AND e.delete_requested_at IS NULL AND NOT {IS_EXPIRED}
                  ORDER BY e.id DESC LIMIT :look_at) e) n
        ORDER BY s.id DESC
        """,
        ListedStore,
    )


_BEFORE = "s.id < CAST(:before AS uuid)"
LIST_ALL_STORES = _listed_stores(_BEFORE)
"""The newest stores behind the one with the id `before`, each with counts of its newest `look_at`
files."""
LIST_STORES_OF_PROJECT = _listed_stores(f"s.project_id = :project AND {_BEFORE}")
"""The same of one project."""
SHOW_STORE = _listed_stores("s.id = :id")
"""One store, with `max_rows` 1. No row: there is none of this id."""


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """A file in a store as operators see it."""

    id: UUID
    file_id: UUID
    filename: str | None
    """null: the file was deleted"""
    status: str
    error_code: str | None
    error_message: str | None
    chunks: int
    usage_bytes: int
    attempts: int
    failures: int
    """attempts in a row that ended without a new chunk"""
    created_at: datetime
    next_attempt_at: datetime


ENTRIES_PAGE = Query(
    """
    SELECT e.id, e.file_id, f.filename, e.status, e.error_code, e.error_message, e.chunks, e.usage_bytes, e.attempts,
           e.failures, e.created_at, e.next_attempt_at
    FROM vector_store_files e LEFT JOIN files f ON f.id = e.file_id
    WHERE e.store_id = :store AND e.delete_requested_at IS NULL
      AND (CAST(:status AS text) IS NULL OR e.status = :status) AND e.id < CAST(:before AS uuid)
    ORDER BY e.id DESC LIMIT :max_rows
    """,
    ListedEntry,
)
"""The newest files of a store behind the entry with the id `before`."""
