"""Runs work that must not be cancelled half-way."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_uncancellable(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Returns what `work` returns. A cancellation is raised after the work has ended.

    For steps that belong together, such as a write to Postgres and the change of this process's
    state that follows it: if it was cancelled between the two, the state would be wrong.
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
        # Retrieved, so that asyncio does not log it. The next write of the run fails the same way.
        task.exception()
    raise cancellation
