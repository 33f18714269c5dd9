"""What an operator reads of responses, and requests of them: cancel, requeue, fail.

A request is recorded, and the owner or a sweep acts on it, which also writes the log line of the
end. The owner is notified of a cancel at once, as by the API. `features/operator/report.py` shows
what these functions return.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from cli.errors import RequestRefused
from cli.output import clean, print_status
from features.operator import document_search, service
from features.operator.connection import operator
from features.operator.diagnosis import Diagnosis, diagnose
from features.operator.filter import LAST_ID, Filter, id_range
from features.operator.history import History, live_counts, read_history
from features.operator.service import Action, other_end
from models.db.database import Connection, fetch, find_by_id
from models.db.queries import listing, operations
from models.db.queries.listing import ListedResponseRow, ResponseDetails
from models.db.queries.operations import ResponseState
from models.db.queries.read import ANY_SIZE, OUTPUT_ITEMS
from models.ids import response_id
from models.lifecycle import TERMINAL
from models.redis.channels import control

MAX_LISTED = 200
"""Most responses that `stuck` shows."""
POLL_INTERVAL = 0.1
"""Seconds between two checks whether requests were acted on."""
_SEARCH_SECONDS = 10
"""For which a search by words, or by what clients have set, goes back in time."""
_MAX_MADE = 10
"""Most responses of one request that are named."""


@dataclass(frozen=True, slots=True)
class StuckResponses:
    """Responses without progress for `idle_seconds`, the longest first. `more`: there are others
    that are not listed."""

    idle_seconds: float
    responses: list[tuple[ResponseState, Diagnosis]]
    more: bool


@dataclass(frozen=True, slots=True)
class ResponseList:
    """The newest responses first. `more`: others fit too, and are not listed."""

    responses: list[ListedResponseRow]
    more: bool
    since_seconds: float | None
    """older ones were not looked at; None: all were"""


@dataclass(frozen=True, slots=True)
class ResponseReport:
    """What a response's row says, and what it does or waits for now."""

    row: ResponseDetails
    why: str
    output: list[dict[str, Any]] | None
    """the output items; None unless they were requested"""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request about a response. `acted`: a process has acted on it. `refused`: it is impossible,
    or came too late."""

    id: str
    request: str
    acted: bool
    refused: bool
    status: str
    why: str


async def explain(database: Connection, id_text: str) -> History:
    """What happened to a response. Raises RequestRefused if there is none of that id."""
    history = await read_history(database, await resolve_id(database, id_text))
    if history is None:
        raise _no_response(id_text)
    return history


async def stuck(database: Connection, idle: timedelta) -> StuckResponses:
    """The open responses without progress for longer than `idle`."""
    rows = await fetch(database, operations.STUCK, {"idle": idle, "max_rows": MAX_LISTED + 1})
    live = await live_counts(database)
    responses = [(row, diagnose(row, live)) for row in rows[:MAX_LISTED]]
    return StuckResponses(idle.total_seconds(), responses, more=len(rows) > MAX_LISTED)


async def list_responses(database: Connection, wanted: Filter, limit: int) -> ResponseList:
    """The newest responses that fit a filter, at most `limit`. The audit log records a search for
    words. Raises RequestRefused for a name that nothing has."""
    wanted, mistakes = await document_search.look_up(database, wanted)
    if mistakes:
        raise RequestRefused(" ".join(mistakes))
    if wanted.text is not None:
        await service.record_search(database, wanted, operator())
    if wanted.searches_documents and (wanted.text is not None or not wanted.is_open_only):
        return await _search(database, wanted, limit)
    statement = listing.LIST_OPEN_RESPONSES if wanted.is_open_only else listing.LIST_RESPONSES
    values = wanted.values(limit + 1)
    if (scan := listing.scan_of_upstream(values["statuses"], wanted.upstream)) is not None:
        statement = scan.rows
    rows = await fetch(database, statement, values)
    since = values["since"]
    return ResponseList(
        rows[:limit],
        more=len(rows) > limit,
        since_seconds=None if since is None else since.total_seconds(),
    )


async def _search(database: Connection, wanted: Filter, limit: int) -> ResponseList:
    try:
        found = await document_search.search(
            database, wanted, LAST_ID, limit, texts=True, budget=_SEARCH_SECONDS
        )
    except document_search.SearchTooSlow:
        raise RequestRefused("the search takes too long: add a rarer word, or --since") from None
    since = wanted.since
    if found.looked_back_to is not None:
        since = datetime.now(UTC) - found.looked_back_to
    return ResponseList(
        found.rows,
        more=found.next_before is not None,
        since_seconds=None if since is None else since.total_seconds(),
    )


async def show(database: Connection, id_text: str, *, with_output: bool) -> ResponseReport:
    """One response; with its output items if `with_output`, which the audit log records. Raises
    RequestRefused."""
    history = await explain(database, id_text)
    identifier = history.state.id
    row = await find_by_id(database, listing.RESPONSE_DETAILS, identifier)
    if row is None:
        raise _no_response(id_text)
    output = None
    if with_output:
        await service.record_reveal(database, identifier, operator())
        items = await fetch(database, OUTPUT_ITEMS, {"id": identifier, "max_size": ANY_SIZE})
        output = [one.item for one in items if one.item is not None]
    return ResponseReport(row, history.why, output)


async def request(
    database: Connection, action: Action, ids: Sequence[UUID], wait: float, data: Path | None
) -> list[OperatorRequest]:
    """Records the action for each response, and waits up to `wait` seconds until all are acted on.

    `data`: the data folder of `up`, which names its Redis. Returns a result for each, also for
    those that were refused.
    """
    actor = operator()
    requested = {
        identifier: await service.request(database, action, identifier, actor)
        for identifier in dict.fromkeys(ids)
    }
    messages = [
        (control(one.cancelled_worker), identifier.hex.encode())
        for identifier, one in requested.items()
        if one.cancelled_worker is not None
    ]
    if messages:
        await _publish(messages, data)
    recorded = [identifier for identifier, one in requested.items() if one.refusal is None]
    pending = await _wait(database, action, recorded, wait)
    live = await live_counts(database)
    results = []
    for identifier, one in requested.items():
        row = await find_by_id(database, operations.STATE, identifier)
        refusal = one.refusal or other_end(action, row)
        results.append(
            OperatorRequest(
                id=response_id(identifier),
                request=action,
                acted=refusal is None and identifier not in pending,
                refused=refusal is not None,
                status=row.status if row is not None else "deleted",
                why=refusal or (diagnose(row, live).why if row is not None else "it was deleted"),
            )
        )
    return results


async def _wait(
    database: Connection, action: Action, ids: Sequence[UUID], wait: float
) -> set[UUID]:
    """Waits until the requests are acted on. Returns those that are not after `wait` seconds."""
    deadline = time.monotonic() + wait
    while True:
        states = await fetch(database, listing.REQUEST_STATES, {"ids": list(ids)}) if ids else []
        pending = {
            state.id
            for state in states
            if not (state.requeued if action == Action.REQUEUE else state.status in TERMINAL)
        }
        if not pending or time.monotonic() >= deadline:
            return pending
        await asyncio.sleep(POLL_INTERVAL)


async def _publish(messages: Sequence[tuple[str, bytes]], data: Path | None) -> None:
    """Sends the notifications. Without Redis nothing is lost: workers see a cancel at their next
    heartbeat, and readers poll the log."""
    from redis.exceptions import RedisError

    from cli.addresses import resolve_redis_url
    from cli.settings import NO_DATABASE, child_settings
    from models.redis.client import redis_client

    address = resolve_redis_url(data)
    if address is None:
        return
    redis = redis_client(child_settings(NO_DATABASE, address), "operator")
    try:
        for channel, payload in messages:
            await redis.publish(channel, payload)
    except (RedisError, OSError) as error:
        print_status(f"backburner: Redis did not answer, so it takes some seconds longer: {error}")
    finally:
        await redis.aclose()


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
        raise _no_response(id_text)
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


def _no_response(id_text: str) -> RequestRefused:
    """The error for an id without a response."""
    return RequestRefused(
        f"there is no response {clean(id_text[:100])}: "
        "it was never created, or its retention has ended"
    )
