"""The statements of batches (docs/batches.md).

A batch is validated and collected by a worker, and expanded by a web process. Two processes that do
the same at once do no harm: each group of lines is one transaction, which moves a cursor of the
batch, or deletes lines, on condition that nobody else has done it. Which batch a process works on is
in features/batches/take_queries.py.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.audit import recorded
from models.db.queries.common import (
    CANCELLABLE_BATCH,
    CANCELLING_BATCH,
    ENDED,
    OPEN,
    bounded_page,
)
from models.db.queries.file_contents import IS_OPEN
from models.db.queries.quotas import OPEN_BATCH
from models.db.queries.read import RESPONSE_COLUMNS, ResponseRow
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as clients see it. Times in whole seconds since the epoch."""

    id: UUID
    endpoint: str
    input_file_id: UUID
    completion_window: str
    metadata: dict[str, str] | None
    status: str
    model: str | None
    errors: list[dict[str, Any]] | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    cancelling_at: int | None
    ended_at: int | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    output_file_id: UUID | None
    error_file_id: UUID | None


def _seconds(name: str) -> str:
    return f"floor(extract(epoch FROM b.{name}))::bigint AS {name}"


_TIMES = (
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "cancelling_at",
    "ended_at",
)
_COLUMNS = f"""b.id, b.endpoint, b.input_file_id, b.completion_window, b.metadata, b.status, b.model, b.errors,
    {", ".join(map(_seconds, _TIMES))},
           b.total, b.completed, b.failed, b.input_tokens, b.cached_tokens, b.output_tokens, b.reasoning_tokens,
           CASE WHEN b.ended_at IS NOT NULL THEN b.output_file_id END AS output_file_id,
           CASE WHEN b.ended_at IS NOT NULL THEN b.error_file_id END AS error_file_id"""

INSERT_BATCH = Query(
    f"""
    INSERT INTO batches
        AS b (id, project_id, api_key_id, endpoint, input_file_id, completion_window, metadata, output_lifetime,
              expires_at)
    VALUES (:id, :project, :api_key, :endpoint, :file, :completion_window, CAST(:metadata AS json),
            CAST(:output_lifetime AS interval),
            clock_timestamp() + CAST(:window AS interval))
    RETURNING {_COLUMNS}
    """,
    BatchRow,
)
FIND_BATCH = Query(
    f"SELECT {_COLUMNS} FROM batches b WHERE b.id = :id AND b.project_id = :project", BatchRow
)
"""No row: the project has no such batch."""


@dataclass(frozen=True, slots=True)
class PagedBatch(BatchRow):
    """A batch of a page."""

    found: int
    """batches that the page would have if it were not bounded in bytes"""


LIST_BATCHES = Query(
    bounded_page(
        f"""SELECT {_COLUMNS} FROM batches b
            WHERE b.project_id = :project AND (CAST(:after AS uuid) IS NULL OR b.id < :after)
            ORDER BY b.id DESC LIMIT :limit""",
        "desc",
    ),
    PagedBatch,
)
"""The batches behind `after`, the newest first; null: from the start."""
CANCEL_BATCH = Query(
    f"""
    WITH cancelled AS (
        UPDATE batches b SET {CANCELLING_BATCH} WHERE b.id = :id AND b.project_id = :project AND {CANCELLABLE_BATCH}
        RETURNING b.*),
         audited AS ({recorded("cancelled")})
    SELECT {_COLUMNS} FROM cancelled b
    """,
    BatchRow,
)
"""Begins to cancel a batch, and adds the entry to the audit log. No row: the project has no such
batch, or it is ending already."""


# --- the worker ---

FIND_INPUT = column(
    """
    SELECT f.id FROM files f WHERE f.id = :id AND f.project_id = :project AND f.completed_at IS NOT NULL
      AND f.delete_requested_at IS NULL
    """,
    UUID,
)
"""The input file of a batch that has not ended. It may have expired (HIDE_EXPIRED_FILES). No row: it
was deleted."""


MAX_MODELS = 10
"""Names of models that a batch stores."""
MOVE_VALIDATION = column(
    """
    UPDATE batches b SET validated_lines = :to_line, validated_bytes = :to_byte, model = coalesce(b.model, :model),
           models = (SELECT coalesce(array_agg(m.name ORDER BY m.nr), '{}')
                     FROM (SELECT u.name, min(u.nr) AS nr
                           FROM unnest(coalesce(b.models, '{}') || CAST(:models AS text[])) WITH ORDINALITY AS u (name, nr)
                           GROUP BY u.name ORDER BY min(u.nr) LIMIT CAST(:max_models AS int)) m),
           collector_until = clock_timestamp() + CAST(:lease AS interval), collector_crashes = 0
    WHERE b.id = :id AND b.status = 'validating' AND b.ending IS NULL AND b.validated_bytes = :from_byte RETURNING b.id
    """,
    UUID,
)
"""Moves the cursor of the validation, and adds models that are new. No row: another worker has done it, or the batch is ending."""
INSERT_LINES = column(
    """
    INSERT INTO batch_lines (batch_id, line, custom_id)
    SELECT CAST(:id AS uuid), n.line, n.custom_id
    FROM unnest(CAST(:lines AS int[]), CAST(:custom_ids AS text[])) AS n (line, custom_id) ORDER BY n.line
    ON CONFLICT (batch_id, custom_id) DO NOTHING RETURNING line
    """,
    int,
)
"""Stores lines of an input. A line that is not returned has the `custom_id` of an earlier one."""
MAX_ERRORS = 100
"""Errors that a batch stores. After so many nothing more is checked."""


@dataclass(frozen=True, slots=True)
class CheckedSoFar:
    """What a batch has of its input."""

    total: int
    """lines that are stored"""
    errors: int
    """errors of others"""


ADD_LINES = Query(
    f"""
    UPDATE batches b SET total = b.total + :added,
           errors = CASE WHEN CAST(:errors AS jsonb) = '[]' THEN b.errors ELSE
                    (SELECT json_agg(e.error ORDER BY e.nr)
                     FROM jsonb_array_elements(coalesce(CAST(b.errors AS jsonb), '[]') || CAST(:errors AS jsonb))
                                                                 WITH ORDINALITY AS e (error, nr)
                                                                     WHERE e.nr <= {MAX_ERRORS}) END
    WHERE b.id = :id RETURNING b.total::int, coalesce(json_array_length(b.errors), 0) AS errors
    """,
    CheckedSoFar,
)
"""Counts lines that were stored, and adds errors of others, up to MAX_ERRORS in all."""
END_VALIDATION = column(
    """
    UPDATE batches b SET collector_until = clock_timestamp(), errors = coalesce(b.errors, CAST(:errors AS json)),
           ending = CASE WHEN coalesce(b.errors, CAST(:errors AS json)) IS NOT NULL THEN 'failed' END,
           status = CASE WHEN coalesce(b.errors, CAST(:errors AS json)) IS NULL THEN 'in_progress' ELSE b.status END,
           in_progress_at = CASE WHEN coalesce(b.errors, CAST(:errors AS json)) IS NULL THEN clock_timestamp() END
    WHERE b.id = :id AND b.status = 'validating' AND b.ending IS NULL AND b.validated_bytes = :from_byte RETURNING b.id
    """,
    UUID,
)
"""The batch begins, or fails with the errors that are stored or these (null: none). No row: as of
MOVE_VALIDATION."""

FAIL_BATCH = column(
    f"""
    UPDATE batches b SET ending = 'failed', errors = CAST(:errors AS json), collector_until = clock_timestamp(),
           status = CASE WHEN b.status = 'validating' THEN b.status ELSE 'finalizing' END,
           finalizing_at = CASE WHEN b.status = 'validating' THEN b.finalizing_at ELSE clock_timestamp() END
    WHERE b.id = :id AND {OPEN_BATCH} AND b.ending IS NULL RETURNING b.id
    """,
    UUID,
)
"""The input of a batch cannot be read any more, or those that worked on it have crashed."""


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """A line whose result can be written."""

    line: int
    custom_id: str
    response_id: UUID | None
    """None: it was refused"""
    error: dict[str, Any] | None
    """{status, body}, if it was refused"""
    size: int
    """bytes of its output, about"""


READY_LINES = Query(
    f"""
    SELECT l.line, l.custom_id, l.response_id, l.error,
           coalesce((SELECT sum(i.size) FROM items i WHERE i.response_id = l.response_id AND i.direction = 'output'),
                    0)::bigint AS size
    FROM batch_lines l LEFT JOIN LATERAL (SELECT r.status FROM responses r
                                          WHERE r.id = l.response_id OFFSET 0) r ON true
    WHERE l.batch_id = :id AND l.expanded AND (r.status IS NULL OR r.status IN {ENDED}) ORDER BY l.line LIMIT :rows
    """,
    ReadyLine,
)
"""Selects the first lines of a batch that were refused, or whose response has ended or was deleted."""
UNEXPANDED_LINES = Query(
    """
    SELECT l.line, l.custom_id, l.response_id, l.error, 0::bigint AS size FROM batch_lines l
    WHERE l.batch_id = :id AND NOT l.expanded ORDER BY l.line LIMIT :rows
    """,
    ReadyLine,
)
"""Selects the first lines of a batch that no response was made of."""


@dataclass(frozen=True, slots=True)
class EndedResponse(ResponseRow):
    """A response that has ended, with its output."""

    items: list[dict[str, Any]] | None


ENDED_RESPONSES = Query(
    f"""
    SELECT {RESPONSE_COLUMNS}, (SELECT array_agg(i.payload ORDER BY i.position) FROM items i
                                WHERE i.response_id = r.id AND i.direction = 'output') AS items
    FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[])) AND r.delete_requested_at IS NULL
    """,
    EndedResponse,
)
"""Selects responses with their output. One without a row was deleted."""
NUMBER_PART = column(
    """
    UPDATE file_parts p SET number = :number WHERE p.id = :part AND p.number IS NULL AND NOT p.abandoned
      AND p.bytes IS NOT NULL RETURNING p.id
    """,
    UUID,
)
"""Makes a part that was written the next one of its file. No row: the purge has given it up. Raises
UniqueViolation if the file has a part of this number."""
SET_OUTPUT_FILE = {
    kind: column(
        f"""
        WITH made AS (UPDATE batches b SET {kind}_file_id = :file WHERE b.id = :id AND b.{kind}_file_id IS NULL
                      RETURNING b.project_id)
        INSERT INTO files (id, project_id, filename, purpose, bytes, lifetime, expires_at)
        SELECT :file, project_id, :filename, 'batch_output', 0, CAST(:lifetime AS interval), :open_until FROM made
        RETURNING id
        """,
        UUID,
    )
    for kind in ("output", "error")
}
"""Makes the output file or the error file of a batch. It can be written until `open_until`. No row:
it has one already."""
COLLECT = column(
    """
    WITH batch AS (
        UPDATE batches b SET completed = b.completed + :completed, failed = b.failed + :failed,
               input_tokens = b.input_tokens + :input_tokens,
               cached_tokens = b.cached_tokens + :cached_tokens, output_tokens = b.output_tokens + :output_tokens,
               reasoning_tokens = b.reasoning_tokens + :reasoning_tokens,
               output_parts = b.output_parts + :new_output_parts, error_parts = b.error_parts + :new_error_parts,
               collector_until = clock_timestamp() + CAST(:lease AS interval), collector_crashes = 0
        WHERE b.id = :id AND b.output_parts = :output_parts AND b.error_parts = :error_parts RETURNING b.id),
         collected AS (DELETE FROM batch_lines l USING batch
                       WHERE l.batch_id = batch.id AND l.line = ANY(CAST(:lines AS int[]))
                       RETURNING l.line, l.response_id),
         unstored AS (UPDATE responses r SET expires_at = clock_timestamp() FROM collected
                      WHERE r.id = collected.response_id AND NOT r.store)
    SELECT count(*)::int AS lines FROM collected
    """,
    int,
)
"""Deletes lines whose results are in new parts of the files, and counts them. A response that was not
to be stored expires. Fewer lines than were given: another worker has collected them, so this
transaction must be rolled back."""
DELETE_LINES = column(
    """
    DELETE FROM batch_lines WHERE batch_id = :id AND line IN (SELECT l.line FROM batch_lines l WHERE l.batch_id = :id
                                                              ORDER BY l.line LIMIT :rows) RETURNING line
    """,
    int,
)
"""Deletes some lines of a batch that never began, or whose results cannot be written."""


@dataclass(frozen=True, slots=True)
class CancelledLine:
    """A response of a batch whose cancel was recorded. `worker`: the owner, or None."""

    id: UUID
    worker: UUID | None


CANCEL_LINES = Query(
    f"""
    WITH running AS MATERIALIZED (
        SELECT l.response_id AS id FROM batch_lines l
        WHERE l.batch_id = :id AND l.expanded AND l.response_id IS NOT NULL)
    UPDATE responses r SET cancel_requested_at = clock_timestamp()
    WHERE r.id IN (
        SELECT o.id FROM running CROSS JOIN LATERAL (SELECT r.id, r.status, r.cancel_requested_at FROM responses r
                                                     WHERE r.id = running.id OFFSET 0) o
        WHERE o.status IN {OPEN} AND o.cancel_requested_at IS NULL LIMIT :rows)
      AND r.status IN {OPEN} AND r.cancel_requested_at IS NULL
    RETURNING r.id, r.worker
    """,
    CancelledLine,
)
"""Records the cancel of open responses of a batch. Those without an owner are ended by a sweep."""
END_BATCH = column(
    f"""
    WITH ended AS (
        UPDATE batches b SET status = coalesce(b.ending, 'completed'),
               finalizing_at = coalesce(b.finalizing_at, CASE WHEN b.ending IS NULL THEN clock_timestamp() END),
               ended_at = clock_timestamp(), total = CASE WHEN b.in_progress_at IS NULL THEN 0 ELSE b.total END
        WHERE b.id = :id AND {OPEN_BATCH} AND (b.ending IS NOT NULL OR b.in_progress_at IS NOT NULL)
          AND NOT EXISTS (SELECT 1 FROM batch_lines l WHERE l.batch_id = b.id)
        RETURNING b.id, b.project_id, b.status, b.output_file_id, b.error_file_id),
         event AS MATERIALIZED (SELECT end_event('batch', ended.id, ended.status) AS id FROM ended),
         shown AS (
             UPDATE files f SET bytes = (SELECT coalesce(sum(p.bytes), 0) FROM file_parts p
                                         WHERE p.file_id = f.id AND p.number IS NOT NULL),
                                         completed_at = clock_timestamp(),
                    expires_at = clock_timestamp() + f.lifetime
             FROM ended WHERE f.id IN (ended.output_file_id, ended.error_file_id)),
         delivered AS (
             INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id)
             SELECT gen_random_uuid(), e.id, event.id, 'batch.' || ended.status,
                    'batch_' || replace(ended.id::text, '-', '')
             FROM ended CROSS JOIN event JOIN webhook_endpoints e ON e.project_id = ended.project_id
             WHERE e.disabled_at IS NULL AND (e.types = '{{}}' OR 'batch.' || ended.status = ANY (e.types)))
    SELECT status FROM ended
    """,
    str,
)
"""Ends a batch none of whose lines is left: its files become visible, and the endpoints of webhooks
that want to know of it get a delivery. No row: lines are left, or it has ended."""


# --- the purge and operators ---

DELETE_OLD_BATCHES = column(
    """
    DELETE FROM batches WHERE id IN (
        SELECT b.id FROM batches b WHERE b.ended_at < clock_timestamp() - CAST(:retention AS interval)
        ORDER BY b.ended_at LIMIT :rows) RETURNING id
    """,
    UUID,
)


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch as operators see it."""

    id: UUID
    project_id: UUID
    project: str
    status: str
    model: str | None
    input_file_id: UUID
    completion_window: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    total: int
    expanded: int
    completed: int
    failed: int
    errors: list[dict[str, Any]] | None
    output_file_id: UUID | None
    error_file_id: UUID | None
    endpoint: str
    input_tokens: int
    output_tokens: int
    api_key_id: UUID
    metadata: dict[str, str] | None
    models: list[str] | None
    """of its requests, in their order; at most MAX_MODELS; null: made by an earlier release"""
    retry_of: UUID | None
    """the batch whose failed requests it runs again"""
    retried_by: UUID | None

    @property
    def model_names(self) -> list[str]:
        """Its models, as far as they are known."""
        return self.models or ([] if self.model is None else [self.model])

    @property
    def shown_models(self) -> str:
        """Its model, or how many it has."""
        names = self.model_names
        if len(names) < 2:
            return "".join(names)
        return f"{len(names)}{' or more' if len(names) == MAX_MODELS else ''} models"

    @property
    def has_ended(self) -> bool:
        """It changes no more."""
        return self.ended_at is not None

    @property
    def can_be_cancelled(self) -> bool:
        """As far as its status shows."""
        return self.status in ("validating", "in_progress")


_LISTED = """b.id, b.project_id, p.name AS project, b.status, b.model, b.input_file_id, b.completion_window,
    b.created_at, b.expires_at, b.ended_at, b.total, b.expanded, b.completed,
           b.failed, b.errors, b.output_file_id, b.error_file_id, b.endpoint, b.input_tokens, b.output_tokens,
    b.api_key_id, b.metadata, b.models, b.retry_of, b.retried_by"""
LIST_ALL_BATCHES = Query(
    f"""
    SELECT {_LISTED.replace("b.errors", "NULL::json AS errors")} FROM batches b JOIN projects p ON p.id = b.project_id
    WHERE (CAST(:project AS text) IS NULL OR p.name = :project) AND (NOT :open OR {OPEN_BATCH})
      AND b.id < CAST(:before AS uuid)
    ORDER BY b.id DESC LIMIT :max_rows
    """,
    ListedBatch,
)
"""The newest batches before an id, without their errors."""
SHOW_BATCH = Query(
    f"SELECT {_LISTED} FROM batches b JOIN projects p ON p.id = b.project_id WHERE b.id = :id",
    ListedBatch,
)

RETRY_BATCH = column(
    f"""
    WITH retried AS (
        SELECT b.* FROM batches b JOIN projects p ON p.id = b.project_id
        WHERE b.id = :retried AND b.ended_at IS NOT NULL AND p.archived_at IS NULL),
         input AS (
             UPDATE files f SET bytes = :bytes, completed_at = clock_timestamp(), expires_at = f.created_at + f.lifetime
             FROM retried WHERE f.id = :file AND {IS_OPEN} RETURNING f.id),
         made AS (
             INSERT INTO batches (id, project_id, api_key_id, endpoint, input_file_id, completion_window, metadata,
                                  output_lifetime, expires_at, retry_of)
             SELECT :id, b.project_id, b.api_key_id, b.endpoint, input.id, b.completion_window, b.metadata,
                    b.output_lifetime, clock_timestamp() + (b.expires_at - b.created_at), b.id
             FROM retried b CROSS JOIN input RETURNING id),
         linked AS (UPDATE batches b SET retried_by = made.id FROM made WHERE b.id = :retried),
         audited AS ({recorded("made")})
    SELECT id FROM made
    """,
    UUID,
)
"""Completes the file `file`, makes the batch `id` of it, as `retried` but for its requests, and adds
the entry to the audit log. No row: there is no such batch that has ended, its project is archived,
or the file is gone."""


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """A response that was made of a line of a batch."""

    id: UUID
    status: str
    model: str
    upstream: str | None
    reason: str | None
    created_at: datetime


RESPONSES_OF_BATCH = Query(
    """
    SELECT r.id, r.status, r.model, r.upstream, r.reason, r.created_at
    FROM (SELECT * FROM responses WHERE request_id = :request_id LIMIT CAST(:look_at AS int)) r
    WHERE CAST(:status AS text) IS NULL OR r.status = :status ORDER BY r.id LIMIT :max_rows
    """,
    BatchResponse,
)
"""Selects the first responses that were made of a batch, among `look_at` of them. `request_id`: the
public id of the batch."""

_RESTS = "statement_timestamp() + interval '1 minute'"
REPAIR_BATCHES = column(
    f"""
    UPDATE batches b SET collector_until = least(b.collector_until, clock_timestamp()),
           expander_until = least(b.expander_until, clock_timestamp())
    WHERE {OPEN_BATCH} AND (b.collector_until > {_RESTS} OR b.expander_until > {_RESTS}) RETURNING 1 AS repaired
    """,
    int,
)
