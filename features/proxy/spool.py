"""The part of a form that comes before its field `model`, kept in a temporary file."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import IO

import structlog

from models.errors import Unavailable
from models.load.budget import Reservation

logger = structlog.get_logger()

IN_MEMORY = 64 * 1024
"""Bytes up to which no file is made."""
_PIECE = 256 * 1024


class Spool:
    """Bytes in the order in which they were added. The file has no name and ends with the
    process."""

    def __init__(self, held: Reservation) -> None:
        """`held`: what it has of the process's room for such files."""
        self.size = 0
        self._held = held
        self._start = bytearray()
        self._file: IO[bytes] | None = None

    async def add(self, data: bytes) -> None:
        """Adds bytes. Raises ShareUsedUp or Unavailable if there is no room for them."""
        if not data:
            return
        self.size += len(data)
        if self.size <= IN_MEMORY:
            self._start += data
            return
        await self._held.grow(self.size)
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as error:
            folder = tempfile.gettempdir()
            logger.warning("upload_not_spooled", folder=folder, error=str(error))
            raise Unavailable(
                "The server has no room for an upload whose 'model' comes behind its file. Send "
                "'model' first, or retry."
            ) from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """All bytes, from the first one. May be called again when the iterator before is over or
        not used any more."""
        if self._start:
            yield bytes(self._start)
        at = 0
        while self._file is not None and (piece := await asyncio.to_thread(self._read, at)):
            at += len(piece)
            yield piece

    def close(self) -> None:
        """Frees the file. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held.release()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by `close`)
        self._file.seek(0, 2)
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[self._file.write(remaining) :]

    def _read(self, at: int) -> bytes:
        if self._file is None:
            return b""
        self._file.seek(at)
        return self._file.read(_PIECE)
