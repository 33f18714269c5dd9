"""`python -m bench.paced_upstream PORT`: a chat upstream whose answers follow a plan.

The plan is the name of the model: `5x0.05+1` sends 5 deltas, 0.05 s apart, the first one after 1 s.
Each delta contains the monotonic time at which it was sent, so that a client on the same host can
compute how long it took. `GET /closed` returns the time at which a client last left a stream.
"""

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from typing import cast

import httptools
import orjson
import uvloop

_PLAN = re.compile(r"(\d+)x([\d.]+)\+([\d.]+)")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"%s"},"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


def model(deltas: int, interval: float = 0.0, delay: float = 0.0) -> str:
    """The name of the model with this plan. Times in seconds."""
    return f"{deltas}x{interval:g}+{delay:g}"


@dataclass(slots=True)
class Closed:
    """When a client last left a stream before its end: monotonic seconds, 0 if none did."""

    at: float = 0.0


class _Server(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, closed: Closed) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = closed
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._closed.at = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self._parser = httptools.HttpRequestParser(self)
        if self._url == b"/closed":
            content = orjson.dumps({"at": self._closed.at})
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(content), content)
            )
            return
        plan = _PLAN.fullmatch(orjson.loads(body)["model"])
        assert plan is not None
        deltas, interval, delay = int(plan[1]), float(plan[2]), float(plan[3])
        if not interval and not delay:
            stream = b"".join(_delta() for _ in range(deltas)) + _LAST
            self._transport.write(_HEAD + _chunk(stream) + b"0\r\n\r\n")
            return
        self._transport.write(_HEAD)
        start = self._loop.time() + delay
        self._timer = self._loop.call_at(start, self._send, deltas, interval, start)

    def _send(self, left: int, interval: float, due: float) -> None:
        if not left:
            self._timer = None
            self._transport.write(_chunk(_LAST) + b"0\r\n\r\n")
            return
        self._transport.write(_chunk(_delta()))
        due += interval
        self._timer = self._loop.call_at(due, self._send, left - 1, interval, due)


def _delta() -> bytes:
    return _CHUNK % (b"%.6f " % time.monotonic())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(port: int) -> None:
    closed = Closed()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Server(closed), "127.0.0.1", port, backlog=4096, reuse_address=True
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
