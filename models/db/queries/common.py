"""Pieces of SQL that several statements share: each rule of a WHERE clause is written here once.

Each write of a worker begins with the fence: an advisory lock of the worker, shared, and then the
look whether its row in `workers` is not dead (the function `fence`, migrations/functions.sql). A
reap takes that lock exclusively. It is no lock of the row, because each of those is a record in the
WAL and, where several sessions have one, a multixact: a worker that streams would make fifty a
second. Then the responses are locked, in id order where there are several. Everything is READ
COMMITTED and, where possible, one autocommitted statement.

Why the statements have their shapes:
- A claim tests EXISTS (a dead owner), never NOT EXISTS (a live owner). The second form let two
  live owners claim the same response.
- The fence is a function that is VOLATILE: it looks at the row in a snapshot of its own, after it
  has the lock. The statement's snapshot is older, and may not show a reap that it has waited for.
- A reap locks the fence first, then the row FOR UPDATE: a fenced statement may write to the row.
- A flush needs only the fence, because only a live worker itself releases its responses.
- A change of status names the statuses it may leave (models/lifecycle.py). No code reads a status,
  decides, and then writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from models.db.statement import Query, RowT
from models.lifecycle import TERMINAL, TRANSITIONS, OperatorStatus
from models.windows import WINDOW_OF_LANE
from models.wire.json_input import VALUE_SIZE


def sql_list(values: Iterable[str]) -> str:
    """`('a', 'b')`: constants of this code, sorted, for `IN`."""
    return "(" + ", ".join(f"'{value}'" for value in sorted(values)) + ")"


def projects_with(table: str, alias: str, condition: str) -> str:
    """A recursive CTE `project (id)`: the projects that have such rows, and null behind them. With
    an index on (project_id, …) it reads one row of each project, however many there are."""
    rows = f"FROM {table} {alias} WHERE {condition}"
    project = f"{alias}.project_id"
    return f"""project (id) AS (
             (SELECT {project} {rows} ORDER BY {project} LIMIT 1)
             UNION ALL
             SELECT (SELECT {project} {rows} AND {project} > p.id ORDER BY {project} LIMIT 1) FROM project p
             WHERE p.id IS NOT NULL)"""


OPEN = sql_list(TRANSITIONS)
"""The statuses of a response that has not ended."""
ENDED = sql_list(TERMINAL)
"""The terminal statuses."""

_FENCE = "fence(CAST(:me AS uuid)) AS f (id)"
FENCE = f"me AS MATERIALIZED (SELECT id FROM {_FENCE} WHERE id IS NOT NULL)"
"""`me`: this process's id, or nothing once the process was declared dead."""
FENCE_WITH_PROCESS = f"""me AS MATERIALIZED (SELECT w.id, w.kind, w.host, w.pid
                          FROM {_FENCE} JOIN workers w ON w.id = f.id)"""
"""`me` with what `workers` has of the process."""
STOPPED = "stopped"
"""`workers.ended` of a process that stopped by itself; of one that was reaped it names the
reaper."""

DEAD_OWNER = "EXISTS (SELECT 1 FROM workers w WHERE w.id = r.worker AND w.dead)"
ORPHAN = f"(r.worker IS NULL OR {DEAD_OWNER})"
"""A response that no live process owns. It may be queued, released, or the owner was reaped."""
CRASHES_OF_ORPHAN = "(r.crashes + (r.worker IS NOT NULL)::int)"
"""Owners of an orphan that crashed since its last checkpoint. An orphan that still names an owner
adds one: that owner is dead."""
IN_TURN = """a.attempt >= coalesce((SELECT max(t.attempt) FROM attempts t
                                    WHERE t.response_id = a.response_id AND t.turns_ended_at <> '{}'), 0)"""
"""An attempt `a` that ended after the last finished turn of its response."""
CRASHES_IN_TURN_OF_ORPHAN = f"""(SELECT count(*) FROM attempts a WHERE a.response_id = r.id
        AND (a.outcome IN ('died', 'error') OR a.attempt = r.attempt AND r.worker IS NOT NULL) AND {IN_TURN})"""
"""Attempts at an orphan that crashed since its last finished turn. No crash is ever forgotten
here."""
ABANDONED = "(NOT r.background AND EXISTS (SELECT 1 FROM workers w WHERE w.id = r.web AND w.dead))"
"""A foreground response whose waiting web process is dead. No client will read it."""
WINDOW = "CASE r.lane {} END".format(
    " ".join(f"WHEN {lane} THEN '{name}'" for lane, name in WINDOW_OF_LANE.items())
)
"""The name of the completion window of response `r`, or null."""
MISSED_WINDOW = "coalesce(r.completed_at, clock_timestamp()) > r.window_ends_at"
"""Response `r` has ended after its completion window, or has not ended although that is over; null:
it has no window."""
RETRYING = f"(r.failed_upstream IS NOT NULL AND r.status IN {OPEN})"
"""Response `r` waits for an upstream that has failed: none has answered it since."""
OPERATOR_STATUS = f"CASE WHEN {RETRYING} THEN '{OperatorStatus.RETRYING}' ELSE r.status END"
"""The `OperatorStatus` of response `r`."""
UPSTREAM = """CASE WHEN r.status IN ('completed', 'incomplete') THEN r.upstream
        ELSE coalesce(r.failed_upstream, r.upstream) END"""
"""The upstream of response `r` that operators see: the one that failed, else the one that answered
its last turn."""
UPSTREAM_FULL = "upstream_full"
"""The reason of what waits because an upstream is at its limit of calls."""
UNTRIED = sql_list(("upstream_down", UPSTREAM_FULL))
"""Reasons of failures without a call: the upstream's circuit is open, or it is at its limit. They say
less than those of a call."""
LAST_FAILURES = f"""(SELECT a.failures FROM attempts a WHERE a.response_id = r.id AND a.failures IS NOT NULL
        ORDER BY a.failures #>> '{{-1,reason}}' IN {UNTRIED}, a.attempt DESC LIMIT 1)"""
"""The failures of upstreams for which response `r` is `retrying`: of the last attempt that called one,
else of the last attempt."""
NOT_DEFERRED = "(r.resume_at IS NULL OR r.resume_at <= clock_timestamp())"
"""Not deferred, or deferred until a time that has passed."""
CREATE_IS_SETTLED = """(r.attempt > 0 OR r.enqueue_count > 0 OR r.confirmed OR NOT EXISTS (
            SELECT 1 FROM workers c WHERE c.id = r.web AND NOT c.dead
            AND c.settled_at <= r.enqueued_at + interval '1 second'))"""
"""A new response that may be claimed or enqueued without its wake-up: its create has a known
outcome. A wake-up is sent only for a create that is stored; `confirmed`: a worker has read it.

The web process that stored it says so in its lease: creates that are dated before `settled_at` were
answered with 200, or were voided after their 503 (models/ownership/creates.py). So a create that was
answered with 503 does not run before it is voided (I9). A dead web process can void nothing any
more, and what it accepted must run (I1). The second is for a clock of the database that is set
back."""


LARGEST_SUM = 2**61
"""The bound of sums of counts: two of them added fit into a bigint."""


def bounded_sum(expression: str) -> str:
    """The sum of counts, 0 without rows. A sum that fits into no bigint would fail the statement
    of all projects for one bad row."""
    return f"least(coalesce(sum({expression}), 0), {LARGEST_SUM})::bigint"


def array(parameter: str, kind: str) -> str:
    """The array `:parameter` of elements of this type.

    In a SELECT of its own its length is not known to the planner. Otherwise it is known to a plan
    that is made for this one execution, which then looks cheaper than a plan that is kept, and
    Postgres plans the statement each time.
    """
    return f"(SELECT CAST(:{parameter} AS {kind}[]))"


def locked_responses(given: str) -> str:
    """Joins to `given`, a source of rows with unique ids, the responses `r` with these ids: locked,
    in id order, without those that another transaction has locked.

    They are selected by their ids alone, and only then compared with other conditions: `OFFSET 0`
    keeps these out. Otherwise Postgres may plan, while few responses are open, to read the index of
    all open ones, and keep that plan when there are ten thousand.

    An array in `given` is written with `array`.
    """
    return f"""(SELECT * FROM {given} ORDER BY id) given CROSS JOIN LATERAL (
                    SELECT r.* FROM responses r WHERE r.id = given.id OFFSET 0 FOR NO KEY UPDATE OF r SKIP LOCKED) r"""


INSERT_INTO_LOG = "INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)"


def visible_outside(response: str) -> str:
    """Whether other requests may see that the response exists: a foreground one only once it has
    ended. `response`: the alias of `responses`."""
    return f"({response}.background OR {response}.status NOT IN {OPEN})"


CANCELLABLE_BATCH = "b.status IN ('validating', 'in_progress') AND b.ending IS NULL"
CANCELLING_BATCH = """status = 'cancelling', ending = 'cancelled', cancelling_at = clock_timestamp(),
    collector_until = clock_timestamp()"""
"""What an UPDATE sets of a batch `b` that is to be cancelled. A worker does the rest."""

EXPIRES_AT_END = (
    "CASE WHEN r.kept_for IS NOT NULL THEN clock_timestamp() + r.kept_for"
    " WHEN r.store THEN greatest(r.expires_at, clock_timestamp() + (r.expires_at - r.created_at))"
    " ELSE clock_timestamp() + interval '10 minutes' END"
)
"""The value of `expires_at` when response `r` ends: the retention, which it got at its creation,
counts from now on. One with `store: false` is kept for ten minutes, so that its client can still
read it. One of a project with zero retention is kept for `kept_for`."""


def json_size(text: str) -> str:
    """The size of JSON, as in models/wire/json_input.py. `text`: an expression for its text."""
    without = " - ".join(f"octet_length(replace({text}, '{mark}', ''))" for mark in ",[{")
    return f"octet_length({text}) + CAST({VALUE_SIZE} AS bigint) * (3 * octet_length({text}) - {without})"


OF_ITEM = "image"
"""The purpose of images that only an item has (docs/tools.md). Such a file has the id of its item; a
trigger deletes it with the item (migrations/functions.sql)."""
_IMAGE_SIZE = """CASE WHEN jsonb_typeof(e.value #> '{result,size}') = 'number'
                           AND e.value ->> 'type' = 'image_generation_call'
                    THEN CAST(e.value #>> '{result,size}' AS bigint) ELSE 0 END"""
"""Of an image that is stored as a file (models/wire/image_marks.py). Output gets one only by
FINISH_CALL, which is given the size."""


def insert_items(
    source: str,
    *,
    response: str = "CAST(NULL AS uuid)",
    conversation: str = "CAST(NULL AS uuid)",
    direction: str = "input",
    items: str = ":items",
    position: str = "0",
    origins: str | None = None,
    on_conflict: str = "",
) -> str:
    """An INSERT of the JSON array `items`, in order, from `position` on, for each row of `source`.

    `response`, `conversation` and `origins` are expressions over `source`. `origins`: an object, id
    of an item -> `key` and `origin` of a call.
    """
    origin, key = (f"{origins} -> (e.value ->> 'id') ->> '{name}'" for name in ("origin", "key"))
    columns, values, size = "", "", json_size("e.text")
    if origins is not None:
        columns, values = ", origin, call_key", f", {origin}, {key}"
        size += f" + coalesce(octet_length({origin}), 0)"
    if direction == "input":
        size += f" + {_IMAGE_SIZE}"
    return f"""
        INSERT INTO items (response_id, conversation_id, direction, position, item_id, type, payload, size{columns})
        SELECT {response}, {conversation}, '{direction}', {position} + e.nr - 1, e.value ->> 'id', e.value ->> 'type',
               e.value, {size}{values}
        FROM {source} CROSS JOIN LATERAL (
            SELECT a.value, a.nr, a.value::text AS text
            FROM jsonb_array_elements(CAST({items} AS jsonb)) WITH ORDINALITY AS a (value, nr) OFFSET 0
        ) e ORDER BY e.nr {on_conflict}"""


UNFLUSHED_BATCHES = "JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch"
"""Joins, behind `workers w`, the batches `j` of its journal that no flush covers."""


def journal_of(response: str) -> str:
    """Joins, behind `workers w`, the batches `j` of its journal that no flush covers; `p.n` is the
    place of the response in the batch's arrays, or null. `response`: an expression for its id."""
    return f"""{UNFLUSHED_BATCHES}
            CROSS JOIN LATERAL (SELECT array_position(j.response_ids, {response}) AS n) p"""


@dataclass(frozen=True, slots=True)
class PagedItem:
    """An item of a page. `payload` is None if the page is full without it."""

    payload: Any
    """an object, or as the caller wants JSON"""
    total: int
    """bytes of this item and those before it on the page"""
    id: str


def item_pages(owner: str, key: str) -> dict[str, Query[PagedItem]]:
    """Pages of a list of items, by `order`: the payloads that follow the item `after` (null: from
    the start), at most `limit`. `owner`: a condition on `{item}`; `key`: the column that orders.
    From the item on with which all together are larger than `max_size`, the payload is null."""
    return {
        order: Query(
            f"""
            SELECT CASE WHEN page.total <= CAST(:max_size AS bigint) THEN page.payload END AS payload,
                   page.total::bigint AS total, page.item_id AS id
            FROM (SELECT i.payload, i.item_id, i.nr, sum(i.size) OVER (ORDER BY i.nr {order}) AS total
                  FROM (SELECT i.payload, i.item_id, i.size, i.{key} AS nr FROM items i WHERE {owner.format(item="i")}
                        AND (CAST(:after AS text) IS NULL OR i.{key} {comparison}
                             (SELECT a.{key} FROM items a WHERE {owner.format(item="a")}
                              AND a.item_id = :after LIMIT 1))
                        ORDER BY i.{key} {order} LIMIT :limit) i) page
            ORDER BY page.nr {order}
            """,
            PagedItem,
        )
        for order, comparison in (("asc", ">"), ("desc", "<"))
    }


PAGE_BYTES = 1024 * 1024
"""Bytes of the rows of a page after which it ends."""


def bounded_page(rows: str, order: str) -> str:
    """The first of `rows`, a SELECT of a page that is ordered by its column `id`, until they have
    PAGE_BYTES together; and, as the column `found`, how many `rows` there are."""
    return f"""
        SELECT (sized.page).*, sized.found FROM (
            SELECT page, page.id, (count(*) OVER ())::int AS found,
                   sum(octet_length(page::text)) OVER (ORDER BY page.id {order}) - octet_length(page::text) AS before
            FROM ({rows}) page) sized
        WHERE sized.before < {PAGE_BYTES} ORDER BY sized.id {order}"""


def pages_of(
    select: str,
    key: str,
    row: type[RowT],
    *,
    limit: str = "limit",
    has_until: bool = False,
    is_bounded: bool = False,
) -> dict[str, Query[RowT]]:
    """By order, `asc` or `desc`: the rows of `select`, which has a WHERE clause, in the order of the
    column `key`, behind the one with `:after`; null: from the start. `limit`: the parameter with
    the most rows. `has_until`: and before the one with `:until`. `is_bounded`: as `bounded_page`.
    """
    queries = {}
    for order, behind in (("asc", ">"), ("desc", "<")):
        until = f"AND (CAST(:until AS uuid) IS NULL OR :until {behind} {key})" if has_until else ""
        rows = f"""
            {select} AND (CAST(:after AS uuid) IS NULL OR {key} {behind} :after) {until}
            ORDER BY {key} {order} LIMIT :{limit}"""
        queries[order] = Query(bounded_page(rows, order) if is_bounded else rows, row)
    return queries


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Frames with consecutive numbers, `first` to `last`, that one attempt wrote."""

    attempt: int
    first: int
    last: int
    frames: bytes


IS_VALID = """k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    AND p.archived_at IS NULL"""
"""Whether key `k` of project `p` is accepted."""

LATEST = "(statement_timestamp() + interval '5 seconds')"
"""A transaction that set a time may have begun later than this statement. No time of an event is
later, unless the clock of the database was set back.

What waits for such a time would wait for as long as the clock was set back. The purge moves each of
them to the present. Which time is impossible is known from how it is made: of a row that nobody has
tried, and of the moment at which a response was enqueued, nothing is later than now; a batch rests
for half a minute at most. Leases of processes are judged by the watch (models/db/queries/leases.py).
"""
