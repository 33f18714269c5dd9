"""The line: which of the responses that wait for a slot a worker claims next (ADR 0041).

A response is in line if it has no owner, none of its owners has crashed, and it is to be run. The
line is read by an index on (background, lane, project, place in line), never from its beginning to
its end: first the next project that has something in line, then the one after it; then the first
responses of the best of them. So its length costs nothing.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.claim import IS_READY, ClaimedRow, claim_sql
from models.db.queries.common import ABANDONED, CREATE_IS_SETTLED, array, locked_responses
from models.db.statement import Query, column
from models.lifecycle import IN_LINE, LANE_ORDER, PLACE_IN_LINE, Lane

_MORE_PROJECTS = 3
_MORE = 7
"""So many projects more, and responses of each, are compared than are wanted: other workers may be
claiming the first ones."""
_STEPS = 64
"""Projects that are looked at on each side of `cursor`, in each lane."""
_PASSED = 1024
"""Projects that are passed by meanwhile: all that they have in line is deferred, or waits for its
previous response."""
_MOST = "(SELECT CAST(:max_rows AS int))"
"""A number that the planner does not know, like those of all parameters here. If it knew them, a
plan that is made for one execution would look cheaper than the one that is kept, and Postgres would
plan the statement each time (models/db/queries/common.py, `array`)."""
_ONLY_NEWCOMERS = "(SELECT CAST(:only_newcomers AS bool))"
_FIRST = "'00000000-0000-0000-0000-000000000000'::uuid"
_LAST = "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid"


@dataclass(frozen=True, slots=True)
class ChosenRow(ClaimedRow):
    """A response that was claimed in its turn."""

    weight: int
    """of its project"""


_SLOW = LANE_ORDER[LANE_ORDER.index(Lane.DEFAULT) + 1 :]
_PLACES = " ".join(f"WHEN {lane.value} THEN {place}" for place, lane in enumerate(_SLOW, 1))
_IN_WINDOWS = LANE_ORDER[LANE_ORDER.index(Lane.FLEX) + 1 :]
_ONLY_BACKGROUND = ", ".join(str(lane.value) for lane in _IN_WINDOWS)


def _lane(at: str, urgent_at: str = "urgent_at") -> str:
    """The order of the lanes: `flex`, and behind it the windows, wait behind all others. One that is
    urgent goes as `default`; without a time for that, once it has been in line since `at` for too
    long."""
    is_urgent = f"coalesce({urgent_at}, {at} + CAST(:flex_wait AS interval)) <= now()"
    return (
        f"CASE WHEN lane <= {Lane.DEFAULT} OR {is_urgent} THEN 0 ELSE CASE lane {_PLACES} END END"
    )


_UPPER_LANE = f"least(lane, {Lane.DEFAULT})"


def _rank(running: str, ahead: str) -> str:
    """The order of what waits. `running`: of the project's responses; one that has its share waits
    behind those that have not."""
    has_share = f"floor({running} * total.weights / (weight * CAST(:slots AS float)))"
    return f"{_lane('at')}, {has_share}, {_UPPER_LANE}, {ahead}, at"


_WALK = f"""
    walk AS (
        SELECT b.background, l.lane, s.after AS project_id, s.upto, 0 AS step, 0 AS passed,
               CAST(NULL AS timestamptz) AS at, CAST(NULL AS timestamptz) AS urgent_at
        FROM unnest({array("kinds", "bool")}) AS b (background),
            generate_series({min(Lane).value}, {max(Lane).value}) AS l (lane),
             (VALUES (CAST(:cursor AS uuid), {_LAST}), ({_FIRST}, CAST(:cursor AS uuid))) AS s (after, upto)
        WHERE b.background OR l.lane NOT IN ({_ONLY_BACKGROUND})
        UNION ALL
        SELECT w.background, w.lane, n.project_id, w.upto, w.step + (n.at <= now())::int,
               w.passed + (n.at > now())::int, n.at, n.urgent_at
        FROM walk w CROSS JOIN LATERAL (
            SELECT r.project_id, {PLACE_IN_LINE} AS at, r.urgent_at FROM responses r
            WHERE {IN_LINE} AND r.background = w.background AND r.lane = w.lane AND r.project_id > w.project_id
              AND r.project_id <= w.upto
            ORDER BY r.project_id, {PLACE_IN_LINE} LIMIT 1) n
        WHERE w.step < {_STEPS} AND w.passed < {_PASSED})"""
_SHARES = f"""
    known AS MATERIALIZED (
        SELECT k.*, greatest(p.weight, 1) AS weight
        FROM unnest({array("projects", "uuid")}, {array("running", "int")}, {array("ahead", "float")})
            AS k (project_id, running, ahead)
        JOIN projects p ON p.id = k.project_id),
    head AS MATERIALIZED (
        SELECT w.background, w.lane, w.project_id, w.at, w.urgent_at, greatest(p.weight, 1) AS weight,
               coalesce(k.running, 0) AS running, coalesce(k.ahead, 0) AS ahead
        FROM walk w JOIN projects p ON p.id = w.project_id LEFT JOIN known k ON k.project_id = w.project_id
        WHERE w.step > 0 AND w.at <= now()),
    total AS MATERIALIZED (
        SELECT sum(weight) AS weights FROM (SELECT project_id, weight FROM head UNION SELECT project_id, weight
                                            FROM known) p)"""
_CANDIDATES = f"""
    best AS MATERIALIZED (
        SELECT head.* FROM head, total WHERE NOT ({_ONLY_NEWCOMERS} AND running > 0)
        ORDER BY {_rank("running", "ahead")} LIMIT {_MOST} + {_MORE_PROJECTS}),
    candidate AS MATERIALIZED (
        SELECT c.id, c.at, c.urgent_at, b.lane, b.weight, b.running, b.ahead,
               row_number() OVER (PARTITION BY b.project_id ORDER BY {_lane("c.at", "c.urgent_at")}, {_UPPER_LANE},
                                  c.at) - 1 AS nr
        FROM best b CROSS JOIN LATERAL (
            SELECT r.id, {PLACE_IN_LINE} AS at, r.urgent_at FROM responses r
            WHERE {IN_LINE} AND r.background = b.background AND r.lane = b.lane AND r.project_id = b.project_id
              AND {PLACE_IN_LINE} <= now()
              AND r.enqueued_at <= now() - (SELECT CAST(:waiting AS interval)) AND NOT {ABANDONED}
              AND (array_position({array("ids", "uuid")}, r.id) IS NOT NULL OR {CREATE_IS_SETTLED})
            ORDER BY {PLACE_IN_LINE} LIMIT {_MOST} + {_MORE}) c)"""
_CHOSEN = f"""SELECT candidate.id, candidate.weight FROM candidate, total WHERE NOT ({_ONLY_NEWCOMERS} AND nr > 0)
            ORDER BY {_rank("(running + nr)", "ahead + nr / CAST(weight AS float)")} LIMIT {_MOST} + {_MORE}"""
_READY = f"""
    ready AS MATERIALIZED (
        SELECT r.id, c.weight FROM me CROSS JOIN ({_CHOSEN}) c
        CROSS JOIN LATERAL (SELECT r.* FROM responses r WHERE r.id = c.id OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) r
        WHERE {IS_READY} LIMIT {_MOST}),"""

CLAIM_NEXT = Query(
    claim_sql(
        "r.id = ready.id",
        first=f"{_WALK},{_SHARES},{_CANDIDATES},{_READY}",
        source="me, ready",
        recursive="RECURSIVE",
        last_column=", (SELECT weight FROM ready WHERE ready.id = claimed.id) AS weight",
    ),
    ChosenRow,
)
"""Claims up to `max_rows` of the responses in line, those whose turn it is (ADR 0041).

`kinds`: of background or foreground responses, or both. `projects`, `running`, `ahead`: of the
projects that this worker knows, how many of their responses run here, and how much more than others
they were served lately (worker/intake/line.py). `slots`: of this worker. `ids`: responses whose wake-ups
were read just now. `waiting`: only those that were enqueued at least so long ago. `only_newcomers`: only the next
one of each project with none of `running`. `cursor`: a project
where the look begins if there are very many. Fewer rows than `max_rows`: the other responses in line
are those that other transactions have locked just now."""


@dataclass(frozen=True, slots=True)
class NextInLine:
    """A response that CLAIM_NEXT would claim."""

    id: UUID
    weight: int
    """of its project"""


NEXT_IN_LINE = Query(f"WITH RECURSIVE {_WALK},{_SHARES},{_CANDIDATES} {_CHOSEN}", NextInLine)
"""Selects, in order, what CLAIM_NEXT would claim, and seven responses more; for its parameters
without those of the claim. If Postgres refuses CLAIM_NEXT, one of these may be the cause."""

CONFIRM = column(
    f"""
    UPDATE responses SET confirmed = true
    FROM (SELECT r.id FROM {locked_responses(f"unnest({array('ids', 'uuid')}) AS t (id)")}
          WHERE r.worker IS NULL AND r.attempt = 0 AND NOT r.confirmed) new
    WHERE responses.id = new.id RETURNING responses.id
    """,
    UUID,
)
"""Records of new responses that their wake-ups were read: any worker may claim them in their turn.
Those that another transaction has locked are being claimed."""

_MAX_LED = 64
LEAD_FOLLOW_UPS = column(
    f"""
    UPDATE responses SET resume_at = responses.enqueued_at - CAST(:lead AS interval)
    FROM (SELECT id FROM responses
          WHERE project_id = :project AND continuation_id = :continuation AND started_at IS NULL
            AND resume_at IS NULL AND {IN_LINE}
          ORDER BY id LIMIT {_MAX_LED} FOR NO KEY UPDATE SKIP LOCKED) follow_up
    WHERE responses.id = follow_up.id RETURNING responses.id
    """,
    UUID,
)
"""Gives the first responses with this `continuation_id` that wait, and were never claimed, a place
that is earlier by `lead`, each once: one of them has begun (ADR 0072)."""

MAX_COUNTED = 1000
"""Responses that PLACE_OF counts at most."""


@dataclass(frozen=True, slots=True)
class PlaceInLine:
    """Where a response waits for a slot."""

    lane: int
    before: int
    """responses of its project that go before it in its lane, at most MAX_COUNTED"""


PLACE_OF = Query(
    f"""
    WITH one AS MATERIALIZED (SELECT background, lane, project_id, {PLACE_IN_LINE} AS at
                              FROM (SELECT * FROM responses WHERE id = :id OFFSET 0) r WHERE {IN_LINE})
    SELECT one.lane, (SELECT count(*) FROM (
        SELECT 1 FROM responses r WHERE {IN_LINE} AND r.background = one.background AND r.lane = one.lane
          AND r.project_id = one.project_id
        AND {PLACE_IN_LINE} < one.at ORDER BY {PLACE_IN_LINE} LIMIT {MAX_COUNTED}) before) AS before
    FROM one
    """,
    PlaceInLine,
)
"""Selects where a response waits. No row: it does not wait in line."""

LINE_PLACES = column(
    f"""
    SELECT coalesce(array_agg(extract(epoch FROM waiting.at)::float8 ORDER BY waiting.at), '{{}}') AS places FROM (
        SELECT {PLACE_IN_LINE} AS at FROM responses r WHERE {IN_LINE} AND r.background = :background AND r.lane = :lane
          AND r.project_id = :project AND {PLACE_IN_LINE} <= clock_timestamp()
        ORDER BY {PLACE_IN_LINE} LIMIT {MAX_COUNTED + 1}) waiting
    """,
    list[float],
)
"""Selects the places of the responses of a project that wait in one lane, the first ones, in seconds
since the epoch: one list, one longer than MAX_COUNTED at most."""
