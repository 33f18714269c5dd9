"""What responses have used: written with their ends, summed up by day, and read.

An entry is written by the statement that ends a response (docs/projects.md, "Why"). The purge sums
up each day (UTC) once, when it has ended, in `usage_days`; `usage_rollup.rolled_until` is the first
day that is not there yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from models.db.queries.common import LARGEST_SUM, bounded_sum
from models.db.statement import Query, Statement, column
from models.lifecycle import Lane
from models.windows import CompletionWindow
from models.wire.proxied_usage import UsageKind
from models.wire.token_counts import COUNTED_BY

_LABELS = "project_id, api_key_id, model, upstream, service_tier"
_COUNTS = "requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens"
_ALL_LABELS = f"{_LABELS}, kind, batch, completion_window"
_ALL_COUNTS = f"{_COUNTS}, units"
"""Responses have no `kind` and no `units`: they are completions. Proxied requests have no `batch` and
no `completion_window`."""
_SUMS = ", ".join(f"{bounded_sum(name)} AS {name}" for name in _ALL_COUNTS.split(", "))


def _tokens(path: str) -> str:
    return f"coalesce((usage #>> '{{{path}}}')::bigint, 0)"


USED_COLUMNS = f"""r.project_id, r.api_key_id, r.model, r.upstream, r.service_tier,
    nullif(r.lane = {Lane.BATCH.value}, false) AS batch,
    CASE r.lane WHEN {Lane.WINDOW_2H.value} THEN '2h' WHEN {Lane.WINDOW_8H.value} THEN '8h' END AS completion_window,
    r.usage, r.turns"""
"""What the CTE `updated` of an ending returns for INSERT_USED; `r` is the response after it."""
INSERT_USED = f"""INSERT INTO usage_entries ({_LABELS}, batch, completion_window, {_COUNTS})
                  SELECT {_LABELS}, batch, completion_window, turns, {_tokens("input_tokens")},
                         {_tokens("input_tokens_details,cached_tokens")},
                         {_tokens("output_tokens")}, {_tokens("output_tokens_details,reasoning_tokens")}
                  FROM updated WHERE turns > 0 AND (usage IS NULL OR usage -> '{COUNTED_BY}' IS NULL)"""
"""For the WITH clause of an ending: adds what the response has used. Nothing for one that never
called a model, or only counted tokens."""

INSERT_PROXIED = Statement(f"""
    INSERT INTO usage_entries (entry_id, {_ALL_LABELS}, {_ALL_COUNTS})
    SELECT entry_id, {_ALL_LABELS}, {_ALL_COUNTS} FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS e (
        entry_id uuid, project_id uuid, api_key_id uuid, model text, upstream text, service_tier text, kind text,
        batch boolean, completion_window text, requests bigint, input_tokens bigint, cached_tokens bigint,
        output_tokens bigint, reasoning_tokens bigint, units bigint)
    ON CONFLICT (entry_id) WHERE entry_id IS NOT NULL DO NOTHING
""")
"""Adds what proxied requests have used. May be repeated."""

ROLL_UP_DAY = column(
    f"""
    WITH day AS (UPDATE usage_rollup SET rolled_until = rolled_until + 1
                 WHERE rolled_until < ((statement_timestamp() - interval '1 hour') AT TIME ZONE 'UTC')::date
                 RETURNING rolled_until - 1 AS day),
         rolled AS (INSERT INTO usage_days (day, {_ALL_LABELS}, {_ALL_COUNTS})
                    SELECT day.day, {_ALL_LABELS}, {_SUMS}
                    FROM day JOIN usage_entries e ON e.ended_at >= day.day::timestamp AT TIME ZONE 'UTC'
                      AND e.ended_at < (day.day + 1)::timestamp AT TIME ZONE 'UTC'
                    GROUP BY day.day, {_ALL_LABELS})
    SELECT 1 FROM day
    """,
    int,
)
"""Sums up the oldest day that is not summed up yet, if it ended more than an hour ago. No row: there
is none."""
DELETE_OLD_ENTRIES = column(
    """
    WITH old AS MATERIALIZED (
        SELECT e.ctid FROM usage_entries e
        WHERE e.ended_at < least(statement_timestamp() - CAST(:keep AS interval),
                                 (SELECT rolled_until::timestamp AT TIME ZONE 'UTC' FROM usage_rollup))
        LIMIT :rows)
    DELETE FROM usage_entries e USING old WHERE e.ctid = old.ctid RETURNING 1
    """,
    int,
)
"""Deletes up to `rows` entries that are older than `keep` and summed up."""


USED_TOKENS = column(
    f"""
    WITH since AS MATERIALIZED (
        SELECT CAST(:since AS timestamptz) AS at,
               ceil(extract(epoch FROM CAST(:since AS timestamptz)) / 86400) AS first_day, rolled_until,
               rolled_until::timestamp AT TIME ZONE 'UTC' AS unrolled FROM usage_rollup)
    SELECT least(coalesce((SELECT sum(d.input_tokens + d.output_tokens) FROM usage_days d, since
                      WHERE d.project_id = :project AND d.day >= DATE 'epoch' + since.first_day::int
                        AND d.day < since.rolled_until), 0)
          + coalesce((SELECT sum(e.input_tokens + e.output_tokens) FROM usage_entries e, since
                      WHERE e.project_id = :project AND e.ended_at >= since.at
                        AND (e.ended_at >= since.unrolled OR e.ended_at < to_timestamp(since.first_day * 86400))), 0),
                        {LARGEST_SUM})::bigint AS tokens
    """,
    int,
)
"""Sums up the input and output tokens of a project since a time; always one row. Exact, unless
`since` is within a day whose entries are deleted: then that day is left out."""


@dataclass(frozen=True, slots=True)
class LatelyUsed:
    """What a project has used within 24 hours, of the entries that were looked at."""

    project_id: UUID
    entries: int
    requests: int
    tokens: int


USED_LATELY = Query(
    f"""
    SELECT p.id AS project_id, n.entries, n.requests, n.tokens FROM unnest(CAST(:projects AS uuid[])) AS p (id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS entries, {bounded_sum("e.requests")} AS requests,
               {bounded_sum("e.input_tokens + e.output_tokens")} AS tokens
        FROM (SELECT * FROM usage_entries e
              WHERE e.project_id = p.id AND e.ended_at > clock_timestamp() - interval '24 hours'
              ORDER BY e.ended_at DESC LIMIT :look_at) e) n
    """,
    LatelyUsed,
)
"""Sums up what each of these projects has used within 24 hours. Of each at most the newest `look_at`
entries are read."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What a group has used in one bucket of time. A label is null if it is not grouped by."""

    bucket: int
    """its begin, in seconds since the epoch"""
    project_id: UUID | None
    api_key_id: UUID | None
    model: str | None
    upstream: str | None
    service_tier: str | None
    batch: bool | None
    """whether it was used by requests in batches"""
    completion_window: str | None
    """one of models/windows.py; null also for none"""
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    units: int
    """images, characters of speech, or seconds of audio"""


def _wanted(alias: str) -> str:
    kind = f"(CAST(:kind AS text) IS NULL OR coalesce({alias}.kind, '{UsageKind.COMPLETIONS}') = :kind)"
    batch = f"(CAST(:batch AS boolean) IS NULL OR coalesce({alias}.batch, false) = :batch)"
    return f"{kind} AND {batch} AND " + " AND ".join(
        f"(CAST(:{name}s AS {kind}[]) IS NULL OR {alias}.{name} = ANY(CAST(:{name}s AS {kind}[])))"
        for name, kind in (("project_id", "uuid"), ("api_key_id", "uuid"), ("model", "text"))
    )


def _used_columns(alias: str) -> str:
    names = f"{_LABELS}, {_ALL_COUNTS}".split(", ")
    return (
        ", ".join(f"{alias}.{name}" for name in names)
        + f", coalesce({alias}.batch, false) AS batch"
        + f", CASE WHEN {alias}.batch THEN '{CompletionWindow.BATCH}' ELSE {alias}.completion_window END"
        " AS completion_window"
    )


_GROUPABLE = (*_LABELS.split(", "), "batch", "completion_window")


def _grouped(name: str) -> str:
    return f"CASE WHEN '{name}' = ANY(CAST(:group_by AS text[])) THEN u.{name} END AS {name}"


USAGE = Query(
    f"""
    WITH used AS (
        SELECT extract(epoch FROM d.day)::bigint AS at, {_used_columns("d")}
        FROM usage_days d, usage_rollup w
        WHERE CAST(:width AS bigint) = 86400 AND d.day < w.rolled_until
          AND d.day >= to_timestamp(:first) AT TIME ZONE 'UTC' AND d.day < to_timestamp(:last) AT TIME ZONE 'UTC'
          AND {_wanted("d")}
        UNION ALL
        SELECT extract(epoch FROM e.ended_at)::bigint AS at, {_used_columns("e")}
        FROM usage_entries e, usage_rollup w
        WHERE e.ended_at >= to_timestamp(:first) AND e.ended_at < to_timestamp(:last)
          AND (CAST(:width AS bigint) < 86400 OR e.ended_at >= w.rolled_until::timestamp AT TIME ZONE 'UTC')
            AND {_wanted("e")})
    SELECT u.at / CAST(:width AS bigint) * CAST(:width AS bigint) AS bucket,
           {", ".join(_grouped(name) for name in _GROUPABLE)}, {_SUMS}
    FROM used u GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8 LIMIT :max_rows
    """,
    UsageRow,
)
"""Sums up what was used from `first` to before `last` (seconds since the epoch), in buckets of
`width` seconds, by the labels `group_by`. Nulls: all kinds, projects, keys,
models, in batches or not. Buckets of a day
are those of UTC. The first `max_rows`, in the order of the buckets."""
_ANY_USAGE = dict.fromkeys(("kind", "project_ids", "api_key_ids", "models", "batch", "max_rows"))


def usage_values(
    first: int, last: int, width: int, group_by: Sequence[str] = (), **wanted: object
) -> dict[str, object]:
    """The parameters of USAGE. `wanted`: those that are not null."""
    return {
        "first": first,
        "last": last,
        "width": width,
        "group_by": list(group_by),
        **_ANY_USAGE,
        **wanted,
    }


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What a group has used on one day (UTC), for operators. A label is null if it is not grouped
    by."""

    day: date
    project: str | None
    """its name; of a deleted project its id"""
    model: str | None
    rows: int
    """that were summed up"""
    is_rolled: bool
    """the day is summed up by the purge"""
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


def _fits(alias: str) -> str:
    return f"""(CAST(:project AS uuid) IS NULL OR {alias}.project_id = :project)
      AND (CAST(:model AS text) IS NULL OR {alias}.model = :model)"""


_SHOWN = "requests, input_tokens, cached_tokens, output_tokens"
USAGE_BY_DAY = Query(
    f"""
    WITH used AS (
        (SELECT d.day, d.project_id, d.model, true AS is_rolled, {", ".join(f"d.{name}" for name in _SHOWN.split(", "))}
         FROM usage_days d, usage_rollup w WHERE d.day >= CAST(:first AS date) AND d.day < w.rolled_until
           AND {_fits("d")} ORDER BY d.day DESC LIMIT :look_at)
        UNION ALL
        (SELECT (e.ended_at AT TIME ZONE 'UTC')::date, e.project_id, e.model, false,
                {", ".join(f"e.{name}" for name in _SHOWN.split(", "))}
         FROM usage_entries e, usage_rollup w WHERE e.ended_at >= w.rolled_until::timestamp AT TIME ZONE 'UTC'
           AND {_fits("e")} LIMIT :look_at)),
         summed AS (
        SELECT u.day, CASE WHEN :by_project THEN u.project_id END AS project_id,
               CASE WHEN :by_model THEN u.model END AS model, count(*) AS rows,
               bool_and(u.is_rolled) AS is_rolled,
               {", ".join(f"{bounded_sum(f'u.{name}')} AS {name}" for name in _SHOWN.split(", "))}
        FROM used u WHERE u.day >= CAST(:first AS date) GROUP BY 1, 2, 3)
    SELECT s.day, CASE WHEN :by_project THEN coalesce(p.name, s.project_id::text) END AS project, s.model, s.rows,
           s.is_rolled, {", ".join(f"s.{name}" for name in _SHOWN.split(", "))}
    FROM summed s LEFT JOIN projects p ON p.id = s.project_id
    ORDER BY s.day DESC, s.input_tokens + s.output_tokens DESC, 2, 3 LIMIT :max_rows
    """,
    DayUsage,
)
"""Sums up what was used since the day `first`, the newest day first. At most `look_at` rows of days
that are summed up are read, and as many of those that are not."""
