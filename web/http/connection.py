"""The client's side of a connection while its response is computed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from models.errors import ClientDisconnected, ServerStopping

T = TypeVar("T")


async def wait_for_disconnect(receive: Receive) -> None:
    """Waits until the client has disconnected. The request body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(
    work: Coroutine[Any, Any, T], receive: Receive, grace_expired: asyncio.Event
) -> T:
    """The result of `work`. Cancels it when the client disconnects or `grace_expired` is set.

    Raises ClientDisconnected or ServerStopping.
    """
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    waiting = (
        working,
        disconnect,
        asyncio.ensure_future(grace_expired.wait()),
    )
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected if disconnect.done() else ServerStopping
    finally:
        for task in waiting:
            task.cancel()
