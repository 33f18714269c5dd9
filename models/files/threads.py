"""The threads in which a storage reads and writes."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class StorageThreads:
    """A few threads of one storage: what blocks runs in them, and not in the event loop."""

    def __init__(self, count: int) -> None:
        """`count`: what is done at a time; the rest waits."""
        self._executor = ThreadPoolExecutor(count, "file-storage")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Also if this is cancelled, `work` does not run any more when it
        returns. Raises what `work` raises."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait((future,))
            raise

    async def close(self) -> None:
        """Waits for what is being done."""
        await asyncio.to_thread(self._executor.shutdown)
