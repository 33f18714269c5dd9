"""What an operator does to responses: cancel, requeue, fail.

Each records a request, and the owner or a sweep acts on it, which also writes the log line of the
end. The owner is notified of a cancel at once, as by the API.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from cli.output import print_status
from features.operator import service
from features.operator.audit_entries import operator
from features.operator.diagnosis import diagnose
from features.operator.facts import OperatorRequest
from features.operator.history import live_counts
from features.operator.service import Action, other_end
from models.db.database import Connection, fetch, find_by_id
from models.db.queries import listing, operations
from models.ids import response_id
from models.lifecycle import TERMINAL
from models.redis.channels import control

_POLL_INTERVAL = 0.1
"""Seconds between two checks whether requests were acted on."""


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
        await asyncio.sleep(_POLL_INTERVAL)


async def _publish(messages: Sequence[tuple[str, bytes]], data: Path | None) -> None:
    """Sends the notifications. Without Redis nothing is lost: workers see a cancel at their next
    heartbeat, and readers poll the log."""
    from redis.exceptions import RedisError

    from cli.options import resolve_redis_url
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
