"""A successful response of an upstream whose body is still to be read."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

import aiohttp
import httpx2

_READ_BYTES = 16 * 1024
"""Bytes of one read at most. What one read brings is parsed without a pause."""


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """The headers and the body, whichever client has sent the request."""

    headers: Mapping[str, str]
    reads: AsyncGenerator[bytes]
    """The bytes of the body as they arrive. Raises aiohttp's or httpx2's errors."""
    close: Callable[[], Awaitable[None]]
    """Gives the connection back if the body was read to its end, else closes it."""

    @classmethod
    def of_aiohttp(cls, response: aiohttp.ClientResponse) -> "OpenResponse":
        """One to a request that aiohttp has sent."""

        async def close() -> None:
            response.release()
            await response.wait_for_close()

        return cls(response.headers, _reads(response.content), close)

    @classmethod
    def of_sdk(cls, response: httpx2.Response) -> "OpenResponse":
        """One to a request that openai's SDK has sent."""
        # Not `aiter_raw`: there is nothing to decode or count. `__aiter__` of a transport's
        # stream is a generator.
        stream = cast("httpx2.AsyncByteStream", response.stream)
        return cls(response.headers, cast("AsyncGenerator[bytes]", aiter(stream)), response.aclose)


async def _reads(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    while data := await content.read(_READ_BYTES):
        yield data
