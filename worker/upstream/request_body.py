"""The body of a request to an upstream, as bytes, and the files in it.

The values of a body are JSON, except a file's data: that is an object which makes the data URL when
the body is encoded. So a file is in memory only while its request is sent.
"""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import orjson

_PIECE = 256 * 1024
"""Bytes of a large body that are handed over at a time."""


class FileData(Protocol):
    """A file in a body."""

    def data_url(self) -> str:
        """Its data URL."""
        ...


class RequestFiles(Protocol):
    """The files in the bodies of one response's requests."""

    async def hold(self) -> None:
        """Has them in memory until `release`. Raises UpstreamFailed."""
        ...

    def release(self) -> None:
        """They were sent. May be called more than once."""
        ...


def encode_body(body: dict[str, Any]) -> bytes:
    """The body as JSON. Its files must be in memory."""
    try:
        return orjson.dumps(body, default=_data_url)
    except orjson.JSONEncodeError:
        # Integers of more than 64 bits, and deep schemas: rare, and valid JSON.
        return json.dumps(
            body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_data_url
        ).encode()


def is_large(content: bytes) -> bool:
    """Whether the body is to be sent by `pieces`."""
    return len(content) > _PIECE


async def pieces(content: bytes, on_sent: Callable[[], None]) -> AsyncGenerator[memoryview]:
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


def _data_url(value: Any) -> str:
    data_url: str = value.data_url()
    return data_url
