"""Files in a folder that all web processes and workers share."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from models.files.storage import CHUNK, StorageError, StorageThreads

_THREADS = 4
"""Reads and writes of one process at a time."""

T = TypeVar("T")


class FolderStorage:
    """Each object is a file below the folder. All work on files is done in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = StorageThreads(_THREADS)

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """The file and its entry in the folder are synced to the disk before this returns."""
        path = self._folder / key
        file = await self._run(lambda: _create(path))
        size = 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                await self._run(partial(_write_all, file, chunk))
            await self._run(lambda: _finish(file, path))
        except BaseException:
            await asyncio.shield(self._run(lambda: _discard(file, path)))
            raise
        return size

    async def read(self, key: str, start: int, length: int) -> AsyncGenerator[bytes, None]:
        """Opens the file at the first chunk, and closes it with the iterator."""
        path = self._folder / key
        with ExitStack() as opened:
            # Closed too if this is cancelled while a thread opens it.
            file = await self._run(lambda: opened.enter_context(path.open("rb", buffering=0)))
            await self._run(lambda: file.seek(start))
            left = length
            while left > 0:
                chunk = await self._run(partial(file.read, min(CHUNK, left)))
                if not chunk:
                    raise StorageError(f"the stored object {key} is shorter than it was")
                left -= len(chunk)
                yield chunk

    async def delete(self, key: str) -> None:
        """The folder of the file stays."""
        path = self._folder / key
        await self._run(lambda: path.unlink(missing_ok=True))

    async def discard(self, key: str) -> None:
        """A file that was begun has its name already."""
        await self.delete(key)

    async def check(self) -> None:
        """The folder, or the one in which it has to be made, must be writable."""
        await self._run(lambda: _require_writable(self._folder))

    async def close(self) -> None:
        """Waits for what is being written."""
        await self._threads.close()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run(work)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise StorageError(f"the folder of the files: {reason}") from error


def _require_writable(folder: Path) -> None:
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, folder)


def _create(path: Path) -> BinaryIO:
    """A new file, whose folder is made if need be."""
    if not path.parent.is_dir():
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        _sync_folder(path.parent.parent)
    return open(path, "xb", buffering=0, opener=_only_for_us)


def _only_for_us(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _finish(file: BinaryIO, path: Path) -> None:
    os.fsync(file.fileno())
    file.close()
    _sync_folder(path.parent)


def _discard(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes the entries of the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
