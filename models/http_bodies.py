"""Bodies of HTTP messages from servers that are not trusted: bounded in size, never compressed.

A small compressed body could unpack into more bytes than there is memory for.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping


class BodyTooLarge(Exception):
    """The body has more bytes than its limit."""


def is_uncompressed(headers: Mapping[str, str]) -> bool:
    """Whether the body is sent as it is, without a content encoding."""
    return headers.get("content-encoding", "identity").strip().lower() in ("", "identity")


async def bounded(chunks: AsyncIterable[bytes], max_bytes: int | None) -> AsyncIterator[bytes]:
    """The chunks of a body. Raises BodyTooLarge after `max_bytes` (None: never)."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if max_bytes is not None and size > max_bytes:
            raise BodyTooLarge
        yield chunk


async def read_bounded(chunks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """A whole body of at most `max_bytes`. Raises BodyTooLarge."""
    return b"".join([chunk async for chunk in bounded(chunks, max_bytes)])
