"""What happened by minute and by ten minutes, for the plots of the console (docs/console.md); and
how long things took, counted in buckets.

Each worker adds once a minute what it has ended; one of them also counts what waits and runs. There
are two hundred rows of minutes and a thousand of ten minutes at most: the purge deletes older ones.

Percentiles cannot be added up, but counts in buckets can: of several processes, and of several
minutes.

What has ended is also counted by model, project and upstream, in `activity_parts`: of each time and
kind `MAX_NAMES` names, and all others together as `OTHERS`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from models.db.queries.common import LARGEST_SUM, bounded_sum
from models.db.statement import Query, Statement, column

MINUTE = 60
TEN_MINUTES = 600
"""The widths of rows, in seconds."""


@dataclass(frozen=True, slots=True)
class AddedActivity:
    """A row to which a worker has added."""

    width: int
    begins_at: datetime


def _sum(name: str) -> str:
    return f"""(SELECT array_agg(coalesce(t.stored, 0) + coalesce(t.added, 0) ORDER BY t.bucket)
                FROM unnest(a.{name}, excluded.{name}) WITH ORDINALITY AS t (stored, added, bucket))"""


MAX_NAMES = 30
"""Names of one kind and time that are counted apart. A few more if several workers add new ones at
once."""
OTHERS = ""
_COUNTS = ("completed", "failed", "input_tokens", "output_tokens", "cost")
_DURATIONS = ("first_token_counts", "total_counts")
_WIDTHS = f"(VALUES ({MINUTE}), ({TEN_MINUTES})) AS w (width)"
_BEGINS_AT = f"to_timestamp(floor((extract(epoch FROM statement_timestamp()) - {MINUTE}) / w.width) * w.width)"
ADD_ACTIVITY = Query(
    f"""
    WITH given AS MATERIALIZED (
             SELECT w.width, {_BEGINS_AT} AS begins_at, p.*
             FROM {_WIDTHS} CROSS JOIN jsonb_to_recordset(CAST(:parts AS jsonb)) AS p (
                 kind text, name text, completed numeric, failed numeric, input_tokens numeric,
                 output_tokens numeric, cost numeric)),
         stored AS MATERIALIZED (
             SELECT s.width, s.kind, s.name
             FROM (SELECT DISTINCT width, kind, begins_at FROM given) g
             JOIN activity_parts s ON s.width = g.width AND s.kind = g.kind AND s.begins_at = g.begins_at),
         ranked AS (
             SELECT g.*, g.name = '{OTHERS}' OR s.name IS NOT NULL
                    OR row_number() OVER (PARTITION BY g.width, g.kind, s.name IS NULL
                                          ORDER BY g.completed + g.failed DESC, g.name)
                       + (SELECT count(*) FROM stored c WHERE c.width = g.width AND c.kind = g.kind
                                                          AND c.name <> '{OTHERS}') <= {MAX_NAMES} AS is_named
             FROM given g LEFT JOIN stored s ON s.width = g.width AND s.kind = g.kind AND s.name = g.name),
         parts AS (
             INSERT INTO activity_parts AS a (width, kind, begins_at, name, {", ".join(_COUNTS)})
             SELECT width, kind, begins_at, CASE WHEN is_named THEN name ELSE '{OTHERS}' END AS name,
                    {", ".join(f"least(sum({name}), {LARGEST_SUM})::bigint" for name in _COUNTS)}
             FROM ranked GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
             ON CONFLICT (width, kind, begins_at, name) DO UPDATE SET
                 {", ".join(f"{name} = least(a.{name} + excluded.{name}, {LARGEST_SUM})" for name in _COUNTS)})
    INSERT INTO activity AS a (width, begins_at, {", ".join((*_COUNTS, *_DURATIONS))})
    SELECT w.width, {_BEGINS_AT},
           {", ".join(f"least(CAST(:{name} AS numeric), {LARGEST_SUM})::bigint" for name in _COUNTS)},
           {", ".join(f"CAST(:{name} AS int[])" for name in _DURATIONS)}
    FROM {_WIDTHS} ORDER BY w.width
    ON CONFLICT (width, begins_at) DO UPDATE SET
        {", ".join(f"{name} = least(a.{name} + excluded.{name}, {LARGEST_SUM})" for name in _COUNTS)},
        {", ".join(f"{name} = coalesce({_sum(name)}, '{{}}')" for name in _DURATIONS)}
    RETURNING a.width, a.begins_at
    """,
    AddedActivity,
)
"""Adds to the minute that ended last, and to the ten minutes that it is part of, also by part
(`parts`). Two rows, the minute first."""

TAKE_SAMPLE = column(
    f"""
    UPDATE activity SET sampled = true WHERE width = {MINUTE} AND begins_at = :minute AND NOT sampled
    RETURNING begins_at
    """,
    datetime,
)
"""One worker counts what waits and runs, for all. No row: another one does."""
SET_SAMPLE = Statement(
    """
    UPDATE activity SET waiting = greatest(waiting, CAST(:waiting AS int)),
           oldest_seconds = greatest(oldest_seconds, CAST(:oldest_seconds AS float)),
                        running = greatest(running, CAST(:running AS int))
    WHERE width = :width AND begins_at = :begins_at
    """
)
"""Stores what waits and runs; of ten minutes the largest numbers."""

_IS_OLD = f"""begins_at < statement_timestamp() - CASE width WHEN {MINUTE} THEN interval '3 hours'
        ELSE interval '8 days' END"""
DELETE_OLD_ACTIVITY = column(
    f"""
    WITH parts AS (DELETE FROM activity_parts WHERE {_IS_OLD} RETURNING 1)
    DELETE FROM activity WHERE {_IS_OLD} RETURNING 1
    """,
    int,
)
"""Deletes what no plot shows any more."""


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """What happened in some seconds. The first three are null if nobody has counted."""

    begins_at: datetime
    waiting: int | None
    oldest_seconds: float | None
    running: int | None
    completed: int
    """responses that ended as completed or incomplete"""
    failed: int
    input_tokens: int
    output_tokens: int
    cost: int
    """in billionths of the currency"""
    first_token_counts: list[int]
    """by bucket (models/db/queries/activity.py), as the next one"""
    total_counts: list[int]


READ_ACTIVITY = Query(
    """
    SELECT begins_at, waiting, oldest_seconds, running, completed, failed, input_tokens, output_tokens, cost,
           first_token_counts, total_counts
    FROM activity WHERE width = :width AND begins_at >= CAST(:since AS timestamptz) ORDER BY begins_at LIMIT 2000
    """,
    ActivityRow,
)
"""Selects the rows of this width, the oldest first."""


@dataclass(frozen=True, slots=True)
class PartSlot:
    """What has ended of one part in one slot of time."""

    slot: int
    """its number, from 0"""
    name: str
    """OTHERS: of all that are not among the largest"""
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost: int


READ_PARTS = Query(
    f"""
    WITH slots AS (
        SELECT floor(extract(epoch FROM p.begins_at - CAST(:since AS timestamptz)) / CAST(:step AS int))::int AS slot,
               p.name, {", ".join(f"sum(p.{name}) AS {name}" for name in _COUNTS)}
        FROM activity_parts p
        WHERE p.width = :width AND p.kind = :kind AND p.begins_at >= CAST(:since AS timestamptz)
        GROUP BY 1, 2),
         largest AS MATERIALIZED (
        SELECT name FROM slots WHERE name <> '{OTHERS}' GROUP BY name
        ORDER BY sum(completed + failed) DESC, sum(input_tokens + output_tokens) DESC, name LIMIT :names)
    SELECT s.slot, coalesce(l.name, '{OTHERS}') AS name,
           {", ".join(f"{bounded_sum(f's.{name}')} AS {name}" for name in _COUNTS)}
    FROM slots s LEFT JOIN largest l ON l.name = s.name GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 10000
    """,
    PartSlot,
)
"""Sums up the parts of one kind since the time `since`, in slots of `step` seconds: the `names` that
have ended most, and all others together."""


_SMALLEST = 0.01
_PER_DECADE = 6
_DECADES = 7
BOUNDS = tuple(_SMALLEST * 10 ** (at / _PER_DECADE) for at in range(_PER_DECADE * _DECADES + 1))
"""The upper bounds of the buckets in seconds, from 10 ms to 28 hours. Each is half as large again
as the one before. Whatever took longer counts in the last one."""


def bucket_of(seconds: float) -> int:
    """The number of the bucket of a duration."""
    return min(bisect_left(BOUNDS, seconds), len(BOUNDS) - 1)


def add_counts(parts: Iterable[Sequence[int]]) -> list[int]:
    """The sums of several counts by bucket. Missing buckets at the end of one are 0."""
    return [sum(bucket) for bucket in zip_longest(*parts, fillvalue=0)]


def percentile(counts: Sequence[int], part: float) -> float | None:
    """The duration in seconds that `part` (0 to 1) of those that were counted did not exceed,
    interpolated within its bucket. None: nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    rank, below = part * total, 0
    for at, count in enumerate(counts):
        if count and below + count >= rank:
            begin = BOUNDS[at - 1] if at else 0.0
            return begin + (BOUNDS[at] - begin) * (rank - below) / count
        below += count
    return BOUNDS[-1]
