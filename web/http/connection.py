"""A client's end of a connection, while its answer is not there yet."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from models.errors import Unavailable

T = TypeVar("T")


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left; its body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(
    work: Coroutine[Any, Any, T], receive: Receive, grace_expired: asyncio.Event
) -> T:
    """What the work gives. When the client leaves first, or `drained` is set (the process stops), the work is cancelled.

    Raises Unavailable then, which somebody hears only in the second case.
    """
    working = asyncio.ensure_future(work)
    waiting = (
        working,
        asyncio.ensure_future(wait_for_disconnect(receive)),
        asyncio.ensure_future(grace_expired.wait()),
    )
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Unavailable("The server is stopping. Please retry.")
    finally:
        for each in waiting:
            each.cancel()
