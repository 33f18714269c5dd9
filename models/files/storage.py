"""Where the content of files is stored.

A stored object is one part of a file. It is written once, as a whole, and never changed. PostgreSQL
knows which objects exist (models/db/queries/file_contents.py): a storage is never asked for a list.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar
from uuid import UUID

CHUNK = 256 * 1024
"""Bytes that are read or written at a time."""


class StorageError(Exception):
    """The storage does not answer, is full, or has lost an object. The message is for operators."""


class FileStorage(Protocol):
    """A folder, or a bucket of S3. Each method raises StorageError."""

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores an object and returns its size in bytes. It is durable when this returns. What
        `chunks` raises is raised here. If this raises, `discard` deletes what may be left."""
        ...

    def read(self, key: str, start: int, length: int) -> AsyncGenerator[bytes, None]:
        """`length` bytes of an object from the byte `start` on, in chunks. Raises StorageError if
        there are fewer."""
        ...

    async def delete(self, key: str) -> None:
        """Deletes an object; does nothing if there is none."""
        ...

    async def discard(self, key: str) -> None:
        """Deletes what is left of an object that was perhaps not written to its end: by a writer
        that has failed, or was killed. Nobody may be writing it any more."""
        ...

    async def check(self) -> None:
        """Returns if the storage can be reached."""
        ...

    async def close(self) -> None:
        """Closes what is open."""
        ...


def part_key(part: UUID) -> str:
    """The key of a part's object. The first two characters, which are random, divide the objects
    into 256 folders of about the same size."""
    return f"{part.hex[-2:]}/{part.hex}"


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
