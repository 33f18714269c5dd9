"""What responses have used: written with their ends, summed up by day, and read.

An entry is written by the statement that ends a response (docs/projects.md, "Why"). The purge sums
up each day (UTC) once, when it has ended, in `usage_days`; `usage_rollup.rolled_until` is the first
day that is not there yet. Until then the hours of a day are in `usage_hours`, for pages that must be
fast; `usage_rollup.hours_until` is the end of the last ten minutes that are in them.

`cost` is in billionths of the currency (models/prices.py), null if it is not known; `unpriced` of a
sum counts the requests of which it is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from models.db.queries.common import LARGEST_SUM, bounded_sum
from models.db.statement import Query, Statement, column
from models.lifecycle import Lane
from models.windows import CompletionWindow
from models.wire.token_counts import COUNTED_BY, UsageKind

_LABELS = "project_id, api_key_id, model, upstream, service_tier"
_COUNTS = "requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens"
_ALL_LABELS = f"{_LABELS}, kind, batch, completion_window"
_ALL_COUNTS = f"{_COUNTS}, units"
"""Responses have no `kind` and no `units`: they are completions. Proxied requests have no `batch` and
no `completion_window`."""
_SUMS = ", ".join(f"{bounded_sum(name)} AS {name}" for name in _ALL_COUNTS.split(", "))
_UNPRICED_SUM = (
    "sum(coalesce({0}.unpriced, CASE WHEN {0}.cost IS NULL THEN {0}.requests ELSE 0 END))"
)


def _known_costs(alias: str) -> str:
    """The sum of the costs that are known, null if none is; and the requests without one."""
    return (
        f"CASE WHEN count({alias}.cost) > 0 THEN least(sum({alias}.cost), {LARGEST_SUM})::bigint END AS cost,"
        f" least(coalesce({_UNPRICED_SUM.format(alias)}, 0), {LARGEST_SUM})::bigint AS unpriced"
    )


_ENTRY_COSTS = "e.cost, CASE WHEN e.cost IS NULL THEN e.requests ELSE 0 END AS unpriced"
"""Of one entry, as of a sum."""


def _tokens(path: str) -> str:
    return f"coalesce((usage #>> '{{{path}}}')::bigint, 0)"


USED_COLUMNS = f"""r.project_id, r.api_key_id, r.model, r.upstream, r.service_tier,
    nullif(r.lane = {Lane.BATCH.value}, false) AS batch,
    CASE r.lane WHEN {Lane.WINDOW_2H.value} THEN '2h' WHEN {Lane.WINDOW_8H.value} THEN '8h' END AS completion_window,
    r.usage, r.turns, r.cost"""
"""What the CTE `updated` of an ending returns for INSERT_USED; `r` is the response after it."""
INSERT_USED = f"""INSERT INTO usage_entries ({_LABELS}, batch, completion_window, cost, {_COUNTS})
                  SELECT {_LABELS}, batch, completion_window, cost, turns, {_tokens("input_tokens")},
                         {_tokens("input_tokens_details,cached_tokens")},
                         {_tokens("output_tokens")}, {_tokens("output_tokens_details,reasoning_tokens")}
                  FROM updated WHERE turns > 0 AND (usage IS NULL OR usage -> '{COUNTED_BY}' IS NULL)"""
"""For the WITH clause of an ending: adds what the response has used. Nothing for one that never
called a model, or only counted tokens."""

INSERT_PROXIED = Statement(f"""
    INSERT INTO usage_entries (entry_id, {_ALL_LABELS}, cost, {_ALL_COUNTS})
    SELECT entry_id, {_ALL_LABELS}, cost, {_ALL_COUNTS} FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS e (
        entry_id uuid, project_id uuid, api_key_id uuid, model text, upstream text, service_tier text, kind text,
        batch boolean, completion_window text, cost bigint, requests bigint, input_tokens bigint, cached_tokens bigint,
        output_tokens bigint, reasoning_tokens bigint, units bigint)
    ON CONFLICT (entry_id) WHERE entry_id IS NOT NULL DO NOTHING
""")
"""Adds what proxied requests have used. May be repeated."""

ROLL_UP_DAY = column(
    f"""
    WITH day AS (UPDATE usage_rollup SET rolled_until = rolled_until + 1
                 WHERE rolled_until < ((statement_timestamp() - interval '1 hour') AT TIME ZONE 'UTC')::date
                 RETURNING rolled_until - 1 AS day),
         rolled AS (INSERT INTO usage_days (day, {_ALL_LABELS}, {_ALL_COUNTS}, cost, unpriced)
                    SELECT day.day, {_ALL_LABELS}, {_SUMS}, {_known_costs("e")}
                    FROM day CROSS JOIN LATERAL (
                        SELECT e.*, NULL::bigint AS unpriced FROM usage_entries e
                        WHERE e.ended_at >= day.day::timestamp AT TIME ZONE 'UTC'
                          AND e.ended_at < (day.day + 1)::timestamp AT TIME ZONE 'UTC') e
                    GROUP BY day.day, {_ALL_LABELS}),
         replaced AS (DELETE FROM usage_hours h USING day
                      WHERE h.hour < (day.day + 1)::timestamp AT TIME ZONE 'UTC')
    SELECT 1 FROM day
    """,
    int,
)
"""Sums up the oldest day that is not summed up yet, if it ended more than an hour ago, in place of
its hours. No row: there is none."""
_ALL_SUMMED = f"{_ALL_LABELS}, {_ALL_COUNTS}, cost, unpriced"
ROLL_UP_HOUR = column(
    f"""
    WITH next AS MATERIALIZED (
             SELECT greatest(hours_until, rolled_until::timestamp AT TIME ZONE 'UTC') AS at FROM usage_rollup),
         part AS (UPDATE usage_rollup SET hours_until = next.at + interval '10 minutes' FROM next
                  WHERE next.at < statement_timestamp() - interval '12 minutes'
                  RETURNING next.at, date_trunc('hour', next.at, 'UTC') AS hour),
         before AS (DELETE FROM usage_hours h USING part WHERE h.hour = part.hour
                    RETURNING h.hour, {", ".join(f"h.{name}" for name in _ALL_SUMMED.split(", "))}),
         summed AS (SELECT * FROM before UNION ALL
                    SELECT part.hour, {", ".join(f"e.{name}" for name in f"{_ALL_LABELS}, {_ALL_COUNTS}".split(", "))},
                           {_ENTRY_COSTS}
                    FROM part JOIN usage_entries e ON e.ended_at >= part.at
                      AND e.ended_at < part.at + interval '10 minutes'),
         rolled AS (INSERT INTO usage_hours (hour, {_ALL_SUMMED})
                    SELECT s.hour, {_ALL_LABELS}, {_SUMS}, {_known_costs("s")}
                    FROM summed s GROUP BY s.hour, {_ALL_LABELS})
    SELECT 1 FROM part
    """,
    int,
)
"""Adds the next ten minutes to the sums of their hour, if they ended more than two minutes ago. An
entry that is stored later still counts in its day. No row: there are none."""
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
    """images, characters of speech, seconds of audio, or milliseconds of CPU of code"""
    cost: int | None
    """in billionths of the currency, of the requests whose cost is known; null: of none it is"""
    unpriced: int
    """requests whose cost is not known"""


def _wanted(alias: str) -> str:
    kind = f"(CAST(:kind AS text) IS NULL OR coalesce({alias}.kind, '{UsageKind.COMPLETIONS}') = :kind)"
    batch = f"(CAST(:batch AS boolean) IS NULL OR coalesce({alias}.batch, false) = :batch)"
    return f"{kind} AND {batch} AND " + " AND ".join(
        f"(CAST(:{name}s AS {kind}[]) IS NULL OR {alias}.{name} = ANY(CAST(:{name}s AS {kind}[])))"
        for name, kind in (("project_id", "uuid"), ("api_key_id", "uuid"), ("model", "text"))
    )


def _used_columns(alias: str, costs: str) -> str:
    names = f"{_LABELS}, {_ALL_COUNTS}".split(", ")
    return (
        ", ".join(f"{alias}.{name}" for name in names)
        + f", coalesce({alias}.batch, false) AS batch"
        + f", CASE WHEN {alias}.batch THEN '{CompletionWindow.BATCH}' ELSE {alias}.completion_window END"
        f" AS completion_window, {costs}"
    )


_GROUPABLE = (*_LABELS.split(", "), "batch", "completion_window")


def _grouped(name: str) -> str:
    return f"CASE WHEN '{name}' = ANY(CAST(:group_by AS text[])) THEN u.{name} END AS {name}"


USAGE = Query(
    f"""
    WITH used AS (
        SELECT extract(epoch FROM d.day)::bigint AS at, {_used_columns("d", "d.cost, d.unpriced")}
        FROM usage_days d, usage_rollup w
        WHERE CAST(:width AS bigint) = 86400 AND d.day < w.rolled_until
          AND d.day >= to_timestamp(:first) AT TIME ZONE 'UTC' AND d.day < to_timestamp(:last) AT TIME ZONE 'UTC'
          AND {_wanted("d")}
        UNION ALL
        SELECT extract(epoch FROM e.ended_at)::bigint AS at, {_used_columns("e", _ENTRY_COSTS)}
        FROM usage_entries e, usage_rollup w
        WHERE e.ended_at >= to_timestamp(:first) AND e.ended_at < to_timestamp(:last)
          AND (CAST(:width AS bigint) < 86400 OR e.ended_at >= w.rolled_until::timestamp AT TIME ZONE 'UTC')
            AND {_wanted("e")})
    SELECT u.at / CAST(:width AS bigint) * CAST(:width AS bigint) AS bucket,
           {", ".join(_grouped(name) for name in _GROUPABLE)}, {_SUMS}, {_known_costs("u")}
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
class UsageSum:
    """What a group has used, for operators. A label is null if it is not grouped by, or if it is
    not known."""

    is_total: bool
    """It is the sum of all groups."""
    day: date | None
    """in UTC"""
    project_id: UUID | None
    project: str | None
    """its name; of a deleted project its id"""
    key_id: UUID | None
    key: str | None
    """the first characters of the key; of a deleted one null"""
    key_name: str | None
    model: str | None
    upstream: str | None
    summed_rows: int
    """that were read of `usage_days` and `usage_hours`"""
    entries: int
    """that were read besides"""
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: int | None
    """as in UsageRow"""
    unpriced: int

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens


_SUM_LABELS = ("project_id", "api_key_id", "model", "upstream")
_SUM_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens")


def _fits(alias: str) -> str:
    filters = {
        "project_id": "project",
        "api_key_id": "key",
        "model": "model",
        "upstream": "upstream",
    }
    types = {"project_id": "uuid", "api_key_id": "uuid"}
    return " AND ".join(
        f"(CAST(:{parameter} AS {types.get(name, 'text')}) IS NULL OR {alias}.{name} = :{parameter})"
        for name, parameter in filters.items()
    )


def _read(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in (*_SUM_LABELS, *_SUM_COUNTS))


def _group(name: str) -> str:
    return f"CASE WHEN '{name}' = ANY(CAST(:group_by AS text[])) THEN u.{name} END AS {name}"


_GROUPS = ", ".join(("day", *_SUM_LABELS))
_DAY_OF = "({} AT TIME ZONE 'UTC')::date"
USAGE_SUMS = Query(
    f"""
    WITH used AS (
        (SELECT d.day, {_read("d")}, d.cost, d.unpriced, 1 AS summed
         FROM usage_days d WHERE d.day >= CAST(:first AS date) AND d.day <= CAST(:last AS date)
           AND d.day < (SELECT rolled_until FROM usage_rollup) AND {_fits("d")} ORDER BY d.day DESC LIMIT :max_summed)
        UNION ALL
        (SELECT {_DAY_OF.format("h.hour")}, {_read("h")}, h.cost, h.unpriced, 1
         FROM usage_hours h WHERE h.hour >= CAST(:first AS date)::timestamp AT TIME ZONE 'UTC'
           AND h.hour < (CAST(:last AS date) + 1)::timestamp AT TIME ZONE 'UTC'
           AND h.hour >= (SELECT rolled_until::timestamp AT TIME ZONE 'UTC' FROM usage_rollup)
           AND {_fits("h")} LIMIT :max_summed)
        UNION ALL
        (SELECT {_DAY_OF.format("e.ended_at")}, {_read("e")}, {_ENTRY_COSTS}, 0
         FROM usage_entries e WHERE e.ended_at >= CAST(:first AS date)::timestamp AT TIME ZONE 'UTC'
           AND e.ended_at < (CAST(:last AS date) + 1)::timestamp AT TIME ZONE 'UTC'
           AND e.ended_at >= (SELECT greatest(hours_until, rolled_until::timestamp AT TIME ZONE 'UTC')
                              FROM usage_rollup)
           AND {_fits("e")} LIMIT :max_entries)),
         labelled AS (
        SELECT {_group("day")}, {", ".join(map(_group, _SUM_LABELS))},
               {", ".join(f"u.{name}" for name in _SUM_COUNTS)}, u.cost, u.unpriced, u.summed
        FROM used u),
         summed AS (
        SELECT grouping(day, project_id, api_key_id, model, upstream) > 0 AS is_total, {_GROUPS},
               sum(l.summed) AS summed_rows, count(*) - sum(l.summed) AS entries,
               {", ".join(f"{bounded_sum(f'l.{name}')} AS {name}" for name in _SUM_COUNTS)}, {_known_costs("l")}
        FROM labelled l GROUP BY GROUPING SETS (({_GROUPS}), ())),
         shown AS (
        SELECT s.* FROM summed s WHERE s.requests > 0 OR s.is_total
        ORDER BY s.is_total DESC, s.day DESC NULLS LAST, s.cost DESC NULLS LAST,
                 s.input_tokens + s.output_tokens DESC, s.requests DESC, {_GROUPS} LIMIT :max_rows)
    SELECT s.is_total, s.day, s.project_id, coalesce(p.name, s.project_id::text) AS project, s.api_key_id AS key_id,
           k.prefix AS key, k.name AS key_name, s.model, s.upstream, coalesce(s.summed_rows, 0)::bigint AS summed_rows,
           coalesce(s.entries, 0)::bigint AS entries, s.requests, s.input_tokens, s.cached_tokens, s.output_tokens,
           s.cost, s.unpriced
    FROM shown s LEFT JOIN api_keys k ON k.id = s.api_key_id
    LEFT JOIN projects p ON p.id = coalesce(s.project_id, k.project_id)
    ORDER BY s.is_total DESC, s.day DESC NULLS LAST, s.cost DESC NULLS LAST,
             s.input_tokens + s.output_tokens DESC, s.requests DESC,
             {", ".join(f"s.{name}" for name in _GROUPS.split(", "))}
    """,
    UsageSum,
    is_planned_anew=True,
)
"""Sums up what was used from the day `first` to the day `last`, by the labels `group_by`: the total,
then the newest day and the most expensive group first, `max_rows` rows. At most `max_summed` rows of
days, as many of hours, and `max_entries` entries are read."""
