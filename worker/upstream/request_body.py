"""The body of a request to an upstream, as bytes, and the files in it.

The values of a body are JSON, except a file's data: that is an object which makes the data URL when
the body is encoded. So a file is in memory only while its request is sent.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Protocol

import orjson

_PIECE = 256 * 1024
"""Bytes of a large body that are handed over at a time."""
_MARK = f"file:{secrets.token_hex(16)}:"
"""Stands for a file while the body is encoded. Clients cannot guess it."""


class RequestFile(Protocol):
    """A file in a body."""

    def data_url_pieces(self) -> Iterator[bytes]:
        """Its data URL in pieces."""
        ...


class RequestFiles(Protocol):
    """The files in the bodies of one response's requests."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        ...

    async def hold(self) -> None:
        """Has them in memory until `release`. Raises UpstreamFailed."""
        ...

    def release(self) -> None:
        """They were sent. May be called more than once."""
        ...


async def encode(body: dict[str, Any], files: RequestFiles) -> bytes | bytearray:
    """The body as JSON; with large files it is made in a thread, which gives the event loop its
    turns. `files`: those in the body, in memory."""
    if files.size <= _PIECE:
        return encode_body(body)
    return await asyncio.to_thread(encode_body, body)


def encode_body(body: dict[str, Any]) -> bytes | bytearray:
    """The body as JSON. Its files must be in memory."""
    files: list[RequestFile] = []

    def mark(value: Any) -> str:
        files.append(value)
        return _MARK

    try:
        encoded = orjson.dumps(body, default=mark)
    except orjson.JSONEncodeError:
        # Integers of more than 64 bits, and deep schemas: rare, and valid JSON.
        files.clear()
        encoded = json.dumps(
            body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=mark
        ).encode()
    if not files:
        return encoded
    # In pieces: each call holds the interpreter's lock, and the event loop waits for it.
    first, *others = encoded.split(_MARK.encode())
    body_bytes = bytearray(first)
    for file, text in zip(files, others, strict=True):
        for piece in file.data_url_pieces():
            body_bytes += piece
        body_bytes += text
    return body_bytes


def is_large(content: bytes | bytearray) -> bool:
    """Whether the body is to be sent by `pieces`."""
    return len(content) > _PIECE


async def pieces(
    content: bytes | bytearray, on_sent: Callable[[], None]
) -> AsyncGenerator[memoryview]:
    """A large body in pieces. It is freed, and `on_sent` called, when the last one was sent: the
    answer may come an hour later."""
    try:
        rest = memoryview(content)
        del content
        while rest:
            piece, rest = rest[:_PIECE], rest[_PIECE:]
            yield piece
            del piece
        del rest
    finally:
        on_sent()
