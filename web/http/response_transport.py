"""Sends the head of a response together with its body, and waits until a large body is sent."""

import asyncio
import weakref
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LARGE_BODY: Final = 64 * 1024
"""Bytes. A larger body is sent without a copy of it, and its request ends when it was sent."""
_PAUSES: Final = 40
"""Longest time in which a client may take a large body, in times of `web.send_timeout`."""


class ResponseTransport(asyncio.Transport):
    """What uvicorn writes one response to.

    uvicorn writes the head and the body separately: two system calls, and two packets that each
    wake the client. Here a head that announces the length of its body waits for the first part of
    it. The head of a stream does not wait: its first event may come much later.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        """`transport`: of the connection."""
        super().__init__()
        self._transport = transport
        # It refers to this object, and what it holds of a request is to be freed with the request.
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)
        self._head: bytes | None = None
        """None: not written yet; empty: sent"""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends a part of the response, or keeps the head."""
        cycle = self._cycle
        if self._head is None and cycle.response_started:
            has_body = cycle.chunked_encoding is False and cycle.scope["method"] != "HEAD"
            self._head = bytes(data) if has_body else b""
            if has_body:
                return
        elif self._head:
            if len(data) > LARGE_BODY:
                self._transport.write(self._head)
            else:
                data = self._head + data
            self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        """Sends what is left, and closes the connection."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed."""
        return self._transport.is_closing()


async def until_sent(transport: asyncio.Transport, flow: FlowControl, pause: float) -> None:
    """Returns when the network has taken what was written to the connection, all but some KiB, or
    the connection is closed. A client that takes less than a fortieth of it in `pause` seconds is
    disconnected: others wait for the memory."""
    left = total = transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(pause):
                await flow.drain()
                return
        except TimeoutError:
            before, left = left, transport.get_write_buffer_size()
            if before - left < max(1, total // _PAUSES):
                transport.abort()
