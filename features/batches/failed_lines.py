"""The failed requests of a batch, as its error file has them, and the lines of its input that asked
for them."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from features.batches.lines import InputLine, group_lines, read_lines
from models.db.queries.file_contents import PartRow
from models.files.content import read_content
from models.files.storage import FileStorage

MAX_SHOWN = 100
"""Failed requests that are shown."""
_MAX_READ = 512 * 1024
"""Bytes of an error file that are read to show them."""
_LONGEST_LINE = 64 * 1024 * 1024
"""Bytes: longer than a line of any file of a batch."""
_MAX_MESSAGE = 500


class _Named(msgspec.Struct):
    """What names a line, of a file of any kind."""

    custom_id: str


class _Answer(msgspec.Struct):
    status_code: int
    body: Any = None


class _ErrorLine(msgspec.Struct):
    """A line of an error file (features/batches/results.py)."""

    id: str
    custom_id: str
    response: _Answer | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FailedLine:
    """A request of a batch that has failed."""

    custom_id: str
    status: int | None
    """of HTTP; None: it has no answer"""
    code: str
    message: str
    named: UUID
    """the response to it, if there is one of this id"""


@dataclass(frozen=True, slots=True)
class FailedLines:
    """The first failed requests of a batch."""

    lines: list[FailedLine]
    is_cut: bool
    """There are more."""


async def read_failed(storage: FileStorage, parts: Sequence[PartRow]) -> FailedLines:
    """The first lines of an error file, which may still be written. `parts`: its content. Raises
    StorageError."""
    size = sum(part.bytes for part in parts)
    shown: list[FailedLine] = []
    async with aclosing(read_content(storage, list(parts), 0, _MAX_READ)) as chunks:
        async for line in read_lines(chunks, 0, 0, _MAX_READ):
            if len(shown) == MAX_SHOWN:
                return FailedLines(shown, is_cut=True)
            if (found := _parse(line.text or b"")) is not None:
                shown.append(found)
    return FailedLines(shown, is_cut=size > _MAX_READ)


def _parse(text: bytes) -> FailedLine | None:
    """None: the line is cut off."""
    try:
        line = msgspec.json.decode(text, type=_ErrorLine)
        named = UUID(hex=line.id.removeprefix("batch_req_"))
    except (msgspec.DecodeError, ValueError):
        return None
    body = line.response.body if line.response is not None else None
    error = body.get("error") if isinstance(body, dict) else line.error
    facts = error if isinstance(error, dict) else {}
    return FailedLine(
        line.custom_id,
        None if line.response is None else line.response.status_code,
        str(facts.get("code") or facts.get("type") or ""),
        str(facts.get("message") or "")[:_MAX_MESSAGE],
        named,
    )


async def failed_input(
    storage: FileStorage, errors: Sequence[PartRow], given: Sequence[PartRow]
) -> AsyncIterator[bytes]:
    """The lines of an input whose `custom_id` a line of the error file has, in the order of the
    input. `errors`, `given`: the contents of the two files. Raises StorageError."""
    failed = set[bytes]()
    async with aclosing(read_content(storage, list(errors))) as chunks:
        async for group in _groups(chunks):
            failed.update(key for key, _ in await asyncio.to_thread(_keyed, group))
    async with aclosing(read_content(storage, list(given))) as chunks:
        async for group in _groups(chunks):
            keyed = await asyncio.to_thread(_keyed, group)
            wanted = b"".join(text + b"\n" for key, text in keyed if key in failed)
            if wanted:
                yield wanted


def _groups(chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[list[InputLine]]:
    return group_lines(read_lines(chunks, 0, 0, _LONGEST_LINE))


def _keyed(lines: Sequence[InputLine]) -> list[tuple[bytes, bytes]]:
    """Each line that has a `custom_id`, behind a hash of it: there may be many long ones."""
    keyed = []
    for line in lines:
        try:
            name = msgspec.json.decode(line.text or b"", type=_Named).custom_id
        except (msgspec.DecodeError, ValueError):
            continue
        keyed.append((hashlib.blake2b(name.encode(), digest_size=16).digest(), line.text or b""))
    return keyed
