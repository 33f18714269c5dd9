"""Sends the head of a response together with its body."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


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
        self._cycle = cycle
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
            data, self._head = self._head + data, b""
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
