"""The operator's commands: each function uses one connection and returns facts.

No function here changes a response; `cli/operations/actions.py` does.
`cli/operations/report.py` prints the facts.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from cli.errors import RequestRefused
from cli.operations.audit_entries import audited, operator, record_response_action
from cli.output import clean
from models.db.queries import listing, operations
from models.db.queries.audit import AuditEntry
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.line import PLACE_OF, PlaceInLine
from models.db.queries.read import ANY_SIZE, OUTPUT_ITEMS
from models.db.sync import SyncConnection, fetch_sync
from models.ids import response_id
from models.operator.diagnosis import diagnose
from models.operator.facts import (
    AttemptFacts,
    CurrentResponse,
    DrainResult,
    Explanation,
    ListedResponse,
    ProcessState,
    ResponseList,
    ResponseReport,
    StuckResponses,
)
from models.operator.filter import Filter
from models.operator.lookup import id_prefix, id_range
from models.operator.timeline import timeline

MAX_LISTED = 200
"""Most responses that `stuck` shows."""
_POLL_INTERVAL = 0.1
"""Seconds between two checks whether a request was acted on."""
_MAX_MADE = 10
"""Most responses of one request that are named."""

Database = SyncConnection
PolledT = TypeVar("PolledT")


def explain(database: Database, id_text: str) -> Explanation:
    """A response's timeline. Raises RequestRefused if there is no response of that id."""
    row = _response_row(database, id_text)
    response = {"id": row.id}
    attempts = fetch_sync(database, operations.ATTEMPTS, response)
    stored = fetch_sync(database, operations.LOG_SUMMARY, response)
    blocks = {block.attempt: block for block in stored}
    return Explanation(
        response=CurrentResponse.from_row(row, live_counts(database), _place(database, row.id)),
        journalled=fetch_sync(database, operations.LAST_JOURNALLED, response)[0].last,
        attempts=[AttemptFacts.from_rows(row, blocks.get(row.attempt)) for row in attempts],
        timeline=timeline(row, attempts, stored),
    )


def stuck(database: Database, idle: timedelta) -> StuckResponses:
    """The open responses without progress for longer than `idle`."""
    rows = fetch_sync(database, operations.STUCK, {"idle": idle, "max_rows": MAX_LISTED + 1})
    live = live_counts(database)
    responses = [CurrentResponse.from_row(row, live) for row in rows[:MAX_LISTED]]
    return StuckResponses(idle.total_seconds(), responses, more=len(rows) > MAX_LISTED)


def workers(database: Database, since: timedelta) -> list[ProcessState]:
    """The live processes, then those that ended within `since`."""
    rows = fetch_sync(database, operations.WORKERS, {"since": since})
    return [ProcessState.from_row(row) for row in rows]


def list_responses(database: Database, wanted: Filter, limit: int) -> ResponseList:
    """The newest responses that fit a filter, at most `limit`."""
    statement = listing.LIST_OPEN_RESPONSES if wanted.is_open_only else listing.LIST_RESPONSES
    values = wanted.values(limit + 1)
    rows = fetch_sync(database, statement, values)
    since = values["since"]
    return ResponseList(
        [ListedResponse.from_row(row) for row in rows[:limit]],
        more=len(rows) > limit,
        since_seconds=None if since is None else since.total_seconds(),
    )


def list_open(database: Database, wanted: Filter, limit: int) -> ResponseList:
    """The newest open responses that fit a filter, at most `limit`."""
    return list_responses(database, wanted.restricted_to_open(), limit)


def show(database: Database, id_text: str, *, with_output: bool) -> ResponseReport:
    """One response; with its output items if `with_output`, which the audit log records. Raises
    RequestRefused."""
    row = _response_row(database, id_text)
    details = fetch_sync(database, listing.RESPONSE_DETAILS, {"id": row.id})
    if not details:
        raise no_response(id_text)
    why = diagnose(row, live_counts(database), _place(database, row.id)).why
    output = None
    if with_output:
        record_response_action(database, "reveal", row.id, "done")
        items = fetch_sync(database, OUTPUT_ITEMS, {"id": row.id, "max_size": ANY_SIZE})
        output = [one.item for one in items if one.item is not None]
    return ResponseReport.from_row(details[0], why, output)


def _place(database: Database, response: UUID) -> PlaceInLine | None:
    """Where a response waits for a slot; None if it does not."""
    places = fetch_sync(database, PLACE_OF, {"id": response})
    return places[0] if places else None


def drain(database: Database, name: str, wait: float) -> list[DrainResult]:
    """Records that processes shall hand over and exit; waits up to `wait` seconds for their end.

    `name` is an id, the beginning of one, or a host name. Raises RequestRefused.
    """
    rows = fetch_sync(database, operations.FIND_WORKERS, {"name": name, "prefix": id_prefix(name)})
    processes = [row for row in rows if not row.dead]
    if not processes:
        raise RequestRefused(
            f"no live process has the id or host name {name}; `backburner workers` lists them"
        )
    if len(processes) > 1 and any(row.host != name for row in processes):
        raise RequestRefused(
            f"{name} is the beginning of {len(processes)} processes' ids; use a longer one"
        )
    ids = [row.id for row in processes]
    names = [f"{row.kind} {row.host}:{row.pid}" for row in processes]
    entry = AuditEntry(operator(), "worker.drain", name, "requested", details={"processes": names})
    with audited(database, entry):
        fetch_sync(database, operations.REQUEST_DRAIN, {"ids": ids})
    left = _poll_until(
        lambda: set(fetch_sync(database, operations.STILL_RUNNING, {"ids": ids})),
        lambda running: not running,
        wait,
    )
    return [
        DrainResult(row.id, row.kind, row.host, row.pid, gone=row.id not in left)
        for row in processes
    ]


def _poll_until(
    poll: Callable[[], PolledT], is_done: Callable[[PolledT], bool], wait: float
) -> PolledT:
    """The first value for which `is_done` is true, or the last value after `wait` seconds."""
    deadline = time.monotonic() + wait
    while not is_done(value := poll()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    return value


def _response_row(database: Database, id_text: str) -> operations.ResponseState:
    rows = fetch_sync(database, operations.STATE, {"id": resolve_id(database, id_text)})
    if not rows:
        raise no_response(id_text)
    return rows[0]


def _made_by_request(database: Database, request_id: str) -> UUID | None:
    """The response that this request made; None if it made none. Raises RequestRefused if it made
    several."""
    values = {"request_id": request_id, "max_rows": _MAX_MADE + 1}
    made = fetch_sync(database, operations.MADE_BY_REQUEST, values)
    if len(made) > 1:
        names = ", ".join(map(response_id, made[:_MAX_MADE]))
        more = " and more" if len(made) > _MAX_MADE else ""
        raise RequestRefused(f"the request made several responses; name one: {names}{more}")
    return made[0] if made else None


def resolve_id(database: Database, id_text: str) -> UUID:
    """The id of the response that an operator means: the id that clients see, a UUID, the beginning
    of one, or the id of the request that made it. Raises RequestRefused if there is no such
    response, or more than one."""
    bounds = id_range(id_text)
    found: list[UUID] = []
    if bounds is not None:
        found = fetch_sync(database, listing.RESPONSES_BY_PREFIX, bounds)
    if len(found) > 1:
        raise RequestRefused(
            f"{id_text} is the beginning of more than one response's id; use a longer one"
        )
    identifier = found[0] if found else _made_by_request(database, id_text)
    if identifier is None:
        raise no_response(id_text)
    return identifier


def resolve_ids(database: Database, names: Sequence[str]) -> tuple[list[UUID], list[str]]:
    """The ids of these responses, and a sentence for each name that means none or several."""
    ids, refusals = [], []
    for name in names:
        try:
            ids.append(resolve_id(database, name))
        except RequestRefused as refused:
            refusals.append(str(refused))
    return ids, refusals


def no_response(id_text: str) -> RequestRefused:
    """The error for an id without a response."""
    return RequestRefused(
        f"there is no response {clean(id_text[:100])}: "
        "it was never created, or its retention has ended"
    )


def live_counts(database: Database) -> dict[str, int]:
    """How many live processes there are of each kind."""
    return {row.kind: row.live for row in fetch_sync(database, LIVE_WORKERS, {})}
