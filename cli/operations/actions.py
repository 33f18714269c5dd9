"""What an operator does to responses: cancel, requeue, fail.

Each records a request, and the owner or a sweep acts on it, which also writes the log line of the
end. The owner is notified of a cancel at once, as by the API.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from cli.errors import RequestRefused
from cli.operations.audit_entries import record_response_action
from cli.operations.queries import Database, live_counts
from cli.output import print_status
from models.db.queries import listing, operations
from models.db.queries.operations import ResponseState
from models.db.sync import fetch_sync
from models.ids import response_id
from models.lifecycle import TERMINAL, Status
from models.operator.diagnosis import diagnose
from models.operator.facts import OperatorRequest
from models.operator.requests import RECORD_REQUEST, Action, other_end, why_refused
from models.redis.channels import control

_POLL_INTERVAL = 0.1
"""Seconds between two checks whether requests were acted on."""


@dataclass(slots=True)
class _Recorded:
    """What was recorded for the responses of one command."""

    ids: list[UUID] = field(default_factory=list)
    refusals: dict[UUID, str] = field(default_factory=dict)
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    """(Redis channel, payload) that make workers and readers look at once"""


def request(
    database: Database, action: Action, ids: Sequence[UUID], wait: float, data: Path | None
) -> list[OperatorRequest]:
    """Records the action for each response, and waits up to `wait` seconds until all are acted on.

    `data`: the data folder of `up`, which names its Redis. Returns a result for each, also for
    those that were refused.
    """
    recorded = _Recorded()
    for identifier in dict.fromkeys(ids):
        try:
            _record(database, action, identifier, recorded)
        except RequestRefused as refused:
            recorded.refusals[identifier] = str(refused)
        else:
            recorded.ids.append(identifier)
    if recorded.messages:
        _publish(recorded.messages, data)
    pending = _wait(database, action, recorded.ids, wait)
    live = live_counts(database)
    results = []
    for identifier in dict.fromkeys(ids):
        row = _state(database, identifier)
        refusal = recorded.refusals.get(identifier) or other_end(action, row)
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


def _record(database: Database, action: Action, identifier: UUID, recorded: _Recorded) -> None:
    """Records the action. Raises RequestRefused with the reason why it is impossible."""
    with database.transaction():
        requested = fetch_sync(database, RECORD_REQUEST[action], {"id": identifier})
        if requested:
            record_response_action(database, action, identifier, "requested")
    if not requested:
        state = _state(database, identifier)
        if action == Action.CANCEL and state is not None and state.status == Status.CANCELLED:
            return
        raise RequestRefused(why_refused(state))
    if action == Action.CANCEL and (owner := requested[0].worker) is not None:
        recorded.messages.append((control(owner), identifier.hex.encode()))


def _state(database: Database, identifier: UUID) -> ResponseState | None:
    rows = fetch_sync(database, operations.STATE, {"id": identifier})
    return rows[0] if rows else None


def _wait(database: Database, action: Action, ids: Sequence[UUID], wait: float) -> set[UUID]:
    """Waits until the requests are acted on. Returns those that are not after `wait` seconds."""
    deadline = time.monotonic() + wait
    while True:
        states = fetch_sync(database, listing.REQUEST_STATES, {"ids": list(ids)}) if ids else []
        pending = {
            state.id
            for state in states
            if not (state.requeued if action == Action.REQUEUE else state.status in TERMINAL)
        }
        if not pending or time.monotonic() >= deadline:
            return pending
        time.sleep(_POLL_INTERVAL)


def _publish(messages: Sequence[tuple[str, bytes]], data: Path | None) -> None:
    """Sends the notifications. Without Redis nothing is lost: workers see a cancel at their next
    heartbeat, and readers poll the log."""
    from redis.exceptions import RedisError

    from cli.options import resolve_redis_url
    from cli.settings import NO_DATABASE, child_settings
    from models.redis.client import redis_client

    address = resolve_redis_url(data)
    if address is None:
        return
    settings = child_settings(NO_DATABASE, address)

    async def send() -> None:
        redis = redis_client(settings, "operator")
        try:
            for channel, payload in messages:
                await redis.publish(channel, payload)
        finally:
            await redis.aclose()

    try:
        asyncio.run(send())
    except (RedisError, OSError) as error:
        print_status(f"backburner: Redis did not answer, so it takes some seconds longer: {error}")
