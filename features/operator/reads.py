"""The operator's commands: each function uses one connection and returns facts.

No function here changes a response; `features/operator/actions.py` does.
`features/operator/report.py` prints the facts.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from cli.errors import RequestRefused
from cli.output import clean
from features.operator import service
from features.operator.audit_entries import operator
from features.operator.facts import (
    CurrentResponse,
    DrainResult,
    Explanation,
    ListedResponse,
    ProcessState,
    ResponseList,
    ResponseReport,
    StuckResponses,
)
from features.operator.filter import Filter, id_prefix, id_range
from features.operator.history import History, live_counts, read_history
from models.db.database import Connection, fetch, find_by_id
from models.db.queries import listing, operations
from models.db.queries.read import ANY_SIZE, OUTPUT_ITEMS
from models.ids import response_id

MAX_LISTED = 200
"""Most responses that `stuck` shows."""
_POLL_INTERVAL = 0.1
"""Seconds between two checks whether a request was acted on."""
_MAX_MADE = 10
"""Most responses of one request that are named."""


async def explain(database: Connection, id_text: str) -> Explanation:
    """A response's timeline. Raises RequestRefused if there is no response of that id."""
    history = await _history(database, id_text)
    return Explanation(
        response=CurrentResponse.from_row(history.state, history.live, history.place),
        journalled=history.journalled,
        attempts=history.attempts,
        timeline=history.timeline,
    )


async def stuck(database: Connection, idle: timedelta) -> StuckResponses:
    """The open responses without progress for longer than `idle`."""
    rows = await fetch(database, operations.STUCK, {"idle": idle, "max_rows": MAX_LISTED + 1})
    live = await live_counts(database)
    responses = [CurrentResponse.from_row(row, live) for row in rows[:MAX_LISTED]]
    return StuckResponses(idle.total_seconds(), responses, more=len(rows) > MAX_LISTED)


async def workers(database: Connection, since: timedelta) -> list[ProcessState]:
    """The live processes, then those that ended within `since`."""
    rows = await fetch(database, operations.WORKERS, {"since": since})
    return [ProcessState.from_row(row) for row in rows]


async def list_responses(database: Connection, wanted: Filter, limit: int) -> ResponseList:
    """The newest responses that fit a filter, at most `limit`."""
    statement = listing.LIST_OPEN_RESPONSES if wanted.is_open_only else listing.LIST_RESPONSES
    values = wanted.values(limit + 1)
    rows = await fetch(database, statement, values)
    since = values["since"]
    return ResponseList(
        [ListedResponse.from_row(row) for row in rows[:limit]],
        more=len(rows) > limit,
        since_seconds=None if since is None else since.total_seconds(),
    )


async def list_open(database: Connection, wanted: Filter, limit: int) -> ResponseList:
    """The newest open responses that fit a filter, at most `limit`."""
    return await list_responses(database, wanted.restricted_to_open(), limit)


async def show(database: Connection, id_text: str, *, with_output: bool) -> ResponseReport:
    """One response; with its output items if `with_output`, which the audit log records. Raises
    RequestRefused."""
    history = await _history(database, id_text)
    row = history.state
    details = await find_by_id(database, listing.RESPONSE_DETAILS, row.id)
    if details is None:
        raise no_response(id_text)
    output = None
    if with_output:
        await service.record_reveal(database, row.id, operator())
        items = await fetch(database, OUTPUT_ITEMS, {"id": row.id, "max_size": ANY_SIZE})
        output = [one.item for one in items if one.item is not None]
    return ResponseReport.from_row(details, history.why, output)


async def drain(database: Connection, name: str, wait: float) -> list[DrainResult]:
    """Records that processes shall hand over and exit; waits up to `wait` seconds for their end.

    `name` is an id, the beginning of one, or a host name. Raises RequestRefused.
    """
    rows = await fetch(database, operations.FIND_WORKERS, {"name": name, "prefix": id_prefix(name)})
    processes = [row for row in rows if not row.dead]
    if not processes:
        raise RequestRefused(
            f"no live process has the id or host name {name}; `backburner workers` lists them"
        )
    if len(processes) > 1 and any(row.host != name for row in processes):
        raise RequestRefused(
            f"{name} is the beginning of {len(processes)} processes' ids; use a longer one"
        )
    await service.drain(database, name, processes, operator())
    ids, deadline = [row.id for row in processes], time.monotonic() + wait
    while left := await fetch(database, operations.STILL_RUNNING, {"ids": ids}):
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(_POLL_INTERVAL)
    return [
        DrainResult(row.id, row.kind, row.host, row.pid, gone=row.id not in left)
        for row in processes
    ]


async def _history(database: Connection, id_text: str) -> History:
    history = await read_history(database, await resolve_id(database, id_text))
    if history is None:
        raise no_response(id_text)
    return history


async def _made_by_request(database: Connection, request_id: str) -> UUID | None:
    """The response that this request made; None if it made none. Raises RequestRefused if it made
    several."""
    values = {"request_id": request_id, "max_rows": _MAX_MADE + 1}
    made = await fetch(database, operations.MADE_BY_REQUEST, values)
    if len(made) > 1:
        names = ", ".join(map(response_id, made[:_MAX_MADE]))
        more = " and more" if len(made) > _MAX_MADE else ""
        raise RequestRefused(f"the request made several responses; name one: {names}{more}")
    return made[0] if made else None


async def resolve_id(database: Connection, id_text: str) -> UUID:
    """The id of the response that an operator means: the id that clients see, a UUID, the beginning
    of one, or the id of the request that made it. Raises RequestRefused if there is no such
    response, or more than one."""
    bounds = id_range(id_text)
    found: list[UUID] = []
    if bounds is not None:
        found = await fetch(database, listing.RESPONSES_BY_PREFIX, bounds)
    if len(found) > 1:
        raise RequestRefused(
            f"{id_text} is the beginning of more than one response's id; use a longer one"
        )
    identifier = found[0] if found else await _made_by_request(database, id_text)
    if identifier is None:
        raise no_response(id_text)
    return identifier


async def resolve_ids(database: Connection, names: Sequence[str]) -> tuple[list[UUID], list[str]]:
    """The ids of these responses, and a sentence for each name that means none or several."""
    ids, refusals = [], []
    for name in names:
        try:
            ids.append(await resolve_id(database, name))
        except RequestRefused as refused:
            refusals.append(str(refused))
    return ids, refusals


def no_response(id_text: str) -> RequestRefused:
    """The error for an id without a response."""
    return RequestRefused(
        f"there is no response {clean(id_text[:100])}: "
        "it was never created, or its retention has ended"
    )
