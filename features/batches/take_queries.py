"""Which batch a process works on next, and the statements of its expansion (docs/batches.md).

Round robin: next is the project for which nothing was done for the longest time, and of it the
batch that has waited longest. So a project with many batches delays one of another project by a
slice of work, and not by all of its own. Open batches are read by an index on (project, time), one
project after the other.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import projects_with
from models.db.queries.quotas import OPEN_BATCH
from models.db.statement import Query, column

_COMPARED = 3
"""Batches of each project that are looked at: other processes may be taking the first ones."""


def _next_batch(cursor: str, is_ready: str) -> str:
    """The CTE `due` with the row of the next batch, locked. `cursor`: the column until when a batch
    is that of another process, or rests. `is_ready`: whether there is something to do for `b`.

    A new batch was not worked on: its `cursor` is the time of its creation."""
    return f"""
    WITH RECURSIVE {projects_with("batches", "b", OPEN_BATCH)},
         served AS MATERIALIZED (
             SELECT p.id, (SELECT max(b.{cursor}) FROM batches b
                           WHERE b.project_id = p.id AND {OPEN_BATCH} AND b.{cursor} > b.created_at) AS at
             FROM project p WHERE p.id IS NOT NULL),
         waiting AS (
             SELECT w.id, row_number() OVER (PARTITION BY p.id ORDER BY w.since) AS nr, w.since, p.at AS served
             FROM served p CROSS JOIN LATERAL (
                 SELECT b.id, b.{cursor} AS since FROM batches b
                 WHERE b.project_id = p.id AND {OPEN_BATCH} AND {is_ready} AND b.{cursor} <= clock_timestamp()
                 ORDER BY b.{cursor} LIMIT {_COMPARED}) w),
         due AS MATERIALIZED (
             SELECT b.id, b.ending IS NULL AND b.expires_at <= clock_timestamp() AS is_over
             FROM (SELECT w.id FROM waiting w ORDER BY w.nr, w.served NULLS FIRST, w.since) w
             CROSS JOIN LATERAL (
                 SELECT b.* FROM batches b WHERE b.id = w.id AND {OPEN_BATCH} AND {is_ready}
                   AND b.{cursor} <= clock_timestamp()
                 OFFSET 0 FOR UPDATE SKIP LOCKED) b
             LIMIT 1)"""


def _is_due(cursor: str, is_ready: str) -> Query[bool]:
    """Whether `_next_batch` may find one."""
    return column(
        f"""
        SELECT EXISTS (SELECT 1 FROM batches b
                       WHERE {OPEN_BATCH} AND {is_ready} AND b.{cursor} <= clock_timestamp()) AS due
        """,
        bool,
    )


_TO_EXPAND = "b.status = 'in_progress' AND b.ending IS NULL AND b.expanded < b.total"
BATCH_IS_DUE = _is_due("collector_until", "true")
"""For TAKE_BATCH."""
EXPANSION_IS_DUE = _is_due("expander_until", _TO_EXPAND)
"""For TAKE_TO_EXPAND."""


def _lease(work: str) -> str:
    """For how long batch `b` is taken: `lease`, doubled with each crash of those that had it."""
    return f"CAST(:lease AS interval) * power(2, least(b.{work}_crashes, 8))"


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch that this worker works on now."""

    id: UUID
    project_id: UUID
    endpoint: str
    input_file_id: UUID
    status: str
    ending: str | None
    """the terminal status that it will have"""
    is_valid: bool
    """all lines of its input were checked"""
    output_lifetime: Any
    """a timedelta, or None"""
    expires_at: datetime
    validated_lines: int
    validated_bytes: int
    crashes: int
    """of workers that had it, in a row, without anything stored"""
    left: int
    """lines whose results are in no file yet"""
    output_file_id: UUID | None
    output_parts: int
    error_file_id: UUID | None
    error_parts: int


TAKE_BATCH = Query(
    f"""{_next_batch("collector_until", "true")}
    UPDATE batches b SET collector_until = clock_timestamp() + {_lease("collector")},
           collector_crashes = b.collector_crashes + 1, ending = CASE WHEN due.is_over THEN 'expired' ELSE b.ending END,
           status = CASE WHEN due.is_over THEN 'finalizing' ELSE b.status END,
           finalizing_at = CASE WHEN due.is_over THEN clock_timestamp() ELSE b.finalizing_at END
    FROM due WHERE b.id = due.id
    RETURNING b.id, b.project_id, b.endpoint, b.input_file_id, b.status, b.ending,
        b.in_progress_at IS NOT NULL AS is_valid, b.output_lifetime, b.expires_at,
              b.validated_lines, b.validated_bytes, b.collector_crashes - 1 AS crashes,
              (b.total - b.completed - b.failed)::int AS left, b.output_file_id, b.output_parts, b.error_file_id,
              b.error_parts
    """,
    TakenBatch,
)
"""Takes the next batch for as long as the lease. One whose time is over expires by that.
After a crash of its worker the lease is twice as long each time. No row: there is nothing to do
now."""
RELEASE_BATCH = column(
    """
    UPDATE batches b SET collector_until = clock_timestamp() + CAST(:pause AS interval), collector_crashes = 0
    WHERE b.id = :id RETURNING b.id
    """,
    UUID,
)
"""Nothing more is to be done before `pause` is over."""


@dataclass(frozen=True, slots=True)
class ExpandedBatch:
    """A batch whose lines this process makes responses of now."""

    id: UUID
    project_id: UUID
    api_key_id: UUID
    endpoint: str
    input_file_id: UUID
    expanded_lines: int
    expanded_bytes: int
    seconds_left: float
    """until it expires"""
    seconds: float
    """from its creation to then"""
    crashes: int
    """of web processes that had it, in a row, without anything stored"""
    open: int
    """lines that were expanded and are not collected"""


TAKE_TO_EXPAND = Query(
    f"""{_next_batch("expander_until", _TO_EXPAND)}
    UPDATE batches b SET expander_until = clock_timestamp() + {_lease("expander")},
           expander_crashes = b.expander_crashes + 1 FROM due WHERE b.id = due.id
    RETURNING b.id, b.project_id, b.api_key_id, b.endpoint, b.input_file_id, b.expanded_lines, b.expanded_bytes,
              extract(epoch FROM b.expires_at - clock_timestamp())::float AS seconds_left,
              extract(epoch FROM b.expires_at - b.created_at)::float AS seconds,
              b.expander_crashes - 1 AS crashes,
              (SELECT count(*) FROM batch_lines l WHERE l.batch_id = b.id AND l.expanded)::int AS open
    """,
    ExpandedBatch,
)
"""Takes the next batch with lines to expand, for as long as the lease. No row: there is
none now."""
RELEASE_EXPANSION = column(
    """
    UPDATE batches b SET expander_until = clock_timestamp() + CAST(:pause AS interval), expander_crashes = 0
    WHERE b.id = :id RETURNING b.id
    """,
    UUID,
)
MOVE_EXPANSION = column(
    """
    UPDATE batches b SET expanded_lines = :to_line, expanded_bytes = :to_byte, expanded = b.expanded + :requests,
           expander_until = clock_timestamp() + CAST(:lease AS interval), expander_crashes = 0
    WHERE b.id = :id AND b.status = 'in_progress' AND b.ending IS NULL AND b.expanded_bytes = :from_byte RETURNING b.id
    """,
    UUID,
)
"""Moves the cursor of the expansion, in the transaction that inserts the responses. No row: another
process has done it, or the batch is ending, so this transaction must be rolled back."""
SET_EXPANDED = column(
    """
    UPDATE batch_lines l SET expanded = true, response_id = n.response_id, error = CAST(n.error AS json)
    FROM unnest(CAST(:lines AS int[]), CAST(:response_ids AS uuid[]), CAST(:errors AS text[]))
        AS n (line, response_id, error)
    WHERE l.batch_id = :id AND l.line = n.line AND NOT l.expanded RETURNING l.line
    """,
    int,
)
