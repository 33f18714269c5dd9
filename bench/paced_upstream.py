"""`python -m bench.paced_upstream PORT`: a chat upstream whose answers follow a plan.

The plan is the name of the model: `5x0.05+1` sends 5 deltas, 0.05 s apart, the first one after 1 s.
`call` calls the first tool of the request, unless the last message is the result of a tool; then it
sends 5 deltas at once.

Each delta contains the monotonic time at which it was sent, so that a client on the same host can
compute how long it took. A request that is not for a stream gets a short answer at once, in the
form of embeddings or of a chat completion. `GET /open` returns how many answers are being sent.
`GET /closed` returns when a client leaves a stream: the time at which the next one does.
"""

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import orjson
import uvloop

CALL = "call"
"""The model that calls a tool."""
PLAN = re.compile(r"(\d+)x([\d.]+)\+([\d.]+)")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":{"role":"assistant",%s},"finish_reason":null}]}\n\n'
)
_TEXT = _CHUNK % b'"content":"%.6f "'
_CALL = _CHUNK % (
    b'"tool_calls":[{"index":0,"id":"call_%d","type":"function",'
    b'"function":{"name":"%s","arguments":"{}"}}]'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n'
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
_DELTAS_AFTER_CALL = 5
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_MESSAGE = {"role": "assistant", "content": "Hello.", "refusal": None}
_COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
    "usage": _USAGE,
}
_DIMENSIONS = 256


def _embeddings(request: dict[str, Any]) -> dict[str, object]:
    """The same embedding for each text of a request."""
    texts = request["input"]
    embedding = [0.25] * request.get("dimensions", _DIMENSIONS)
    count = len(texts) if isinstance(texts, list) else 1
    return {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": at, "embedding": embedding} for at in range(count)
        ],
        "usage": _USAGE,
    }


def model(deltas: int, interval: float = 0.0, delay: float = 0.0) -> str:
    """The name of the model with this plan. Times in seconds."""
    return f"{deltas}x{interval:g}+{delay:g}"


@dataclass(slots=True)
class _State:
    """What all connections share."""

    open: int = 0
    """answers that are being sent"""
    waiting: list["_Server"] = field(default_factory=list)
    """connections that wait until a client leaves"""

    def leave(self) -> None:
        """A client has left a stream before its end."""
        now = time.monotonic()
        waiting, self.waiting = self.waiting, []
        for server in waiting:
            server.reply({"at": now})


class _Server(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, state: _State) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._state.open -= 1
            self._state.leave()

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
            self._state.waiting.append(self)
        elif self._url == b"/open":
            self.reply({"open": self._state.open})
        else:
            self._complete(orjson.loads(body))

    def reply(self, content: Mapping[str, object]) -> None:
        """Replies with JSON."""
        data = orjson.dumps(content)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(data), data)
        )

    def _complete(self, request: dict[str, Any]) -> None:
        if not request.get("stream"):
            is_embedding = self._url.endswith(b"/embeddings")
            self.reply(_embeddings(request) if is_embedding else _COMPLETION)
            return
        if request["model"] == CALL:
            self._transport.write(_HEAD + _chunk(_call_or_text(request)) + b"0\r\n\r\n")
            return
        plan = PLAN.fullmatch(request["model"])
        assert plan is not None
        deltas, interval, delay = int(plan[1]), float(plan[2]), float(plan[3])
        if not interval and not delay:
            self._transport.write(_HEAD + _chunk(_text(deltas)) + b"0\r\n\r\n")
            return
        self._transport.write(_HEAD)
        self._state.open += 1
        start = self._loop.time() + delay
        self._timer = self._loop.call_at(start, self._send, deltas, interval, start)

    def _send(self, left: int, interval: float, due: float) -> None:
        if not left:
            self._timer = None
            self._state.open -= 1
            self._transport.write(_chunk(_LAST % b"stop") + b"0\r\n\r\n")
            return
        self._transport.write(_chunk(_delta()))
        due += interval
        self._timer = self._loop.call_at(due, self._send, left - 1, interval, due)


def _call_or_text(request: dict[str, Any]) -> bytes:
    if request["messages"][-1]["role"] == "tool":
        return _text(_DELTAS_AFTER_CALL)
    name = request["tools"][0]["function"]["name"].encode()
    return _CALL % (time.monotonic_ns(), name) + _LAST % b"tool_calls"


def _text(deltas: int) -> bytes:
    return b"".join(_delta() for _ in range(deltas)) + _LAST % b"stop"


def _delta() -> bytes:
    return _TEXT % time.monotonic()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(port: int) -> None:
    state = _State()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Server(state), "127.0.0.1", port, backlog=4096, reuse_address=True
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
