"""What must not be left half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_uncancellable(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` gives or raises. A cancellation that comes meanwhile is passed on once it has ended, whatever came out of it.

    For a write together with the notes we keep of it: were it dropped in the middle, nobody would know whether it is stored.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that nobody reports it as lost: whoever was cancelled finds out the same by itself
    raise cancellation
