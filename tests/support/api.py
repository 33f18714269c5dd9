"""A raw client of one web process.

It sees statuses, headers and bytes; the openai client hides them.
"""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, overload

import aiohttp

JSON = dict[str, Any]
T = TypeVar("T")
TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
UNKNOWN_RESPONSE_ID = "resp_01a1fc89ade272e095a74eaedfc80911"
"""A well-formed id of no response. It is constant because names of tests contain it."""
ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_RAREST = 0.1
"""Seconds between two tries of `until`, at most, unless its caller says more."""


@overload
async def until(
    condition: Callable[[], Awaitable[T]], within: float = 10, *, every: float = 0.02
) -> T: ...
@overload
async def until(condition: Callable[[], T], within: float = 10, *, every: float = 0.02) -> T: ...
async def until(condition: Callable[[], Any], within: float = 10, *, every: float = 0.02) -> Any:
    """Waits until `condition()` is true and returns its value.

    Raises AssertionError with the last value after `within` seconds; `every`: seconds between two
    tries. A try that waits itself, for a process or a database, costs milliseconds of CPU: the
    longer it takes, the rarer they become, up to `_RAREST`.
    """
    start = time.monotonic()
    while True:
        value = condition()
        pause = every
        if isinstance(value, Awaitable):
            value = await value
            pause = max(every, min(_RAREST, (time.monotonic() - start) / 10))
        if value:
            return value
        if time.monotonic() > start + within:
            raise AssertionError(f"not within {within} s; the last value was {value!r}")
        await asyncio.sleep(pause)


class StreamRefused(AssertionError):
    """The answer to a request for a stream was no stream."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


@dataclass(slots=True)
class HttpResponse:
    """A complete HTTP answer."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> JSON:
        return cast("JSON", json.loads(self.raw))

    @property
    def error(self) -> JSON:
        """The object in the error envelope. It always has all four keys (docs/wire.md)."""
        body = self.body
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert body["error"]["message"], body
        return cast("JSON", body["error"])


def decode(frame: bytes) -> JSON:
    """The event in a frame.

    A frame has `event: <type>`, one `data:` line, only LF, nothing else.
    """
    head, data, end, rest = frame.split(b"\n")
    assert b"\r" not in frame
    assert end == rest == b"", frame
    assert data.startswith(b"data: "), frame
    event = cast("JSON", json.loads(data[6:]))
    assert head == b"event: " + event["type"].encode(), frame
    return event


@dataclass(slots=True)
class Stream:
    """An SSE answer that is being read. `frames` has the bytes of all events read so far."""

    headers: Mapping[str, str]
    _content: aiohttp.StreamReader
    frames: list[bytes] = field(default_factory=list)
    is_done: bool = False
    """Whether `data: [DONE]` was read."""
    comments: int = 0
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    """Each piece as it was received, and when (`time.monotonic()`)."""
    _buffer: bytearray = field(default_factory=bytearray)

    @property
    def events(self) -> list[JSON]:
        return [decode(frame) for frame in self.frames]

    @property
    def response_id(self) -> str:
        return cast("str", self.events[0]["response"]["id"])

    @property
    def final(self) -> JSON:
        """The response in the terminal event."""
        last = decode(self.frames[-1])
        assert last["type"] in ENDINGS, last
        return cast("JSON", last["response"])

    @property
    def last_number(self) -> int:
        return cast("int", decode(self.frames[-1])["sequence_number"])

    async def next(self) -> JSON | None:
        """The next event; None at the end of the stream."""
        while True:
            cut = self._buffer.find(b"\n\n")
            if cut < 0:
                data = await self._content.readany()
                if not data:
                    assert not self._buffer, (
                        f"the stream broke off inside a frame: {bytes(self._buffer)!r}"
                    )
                    return None
                self.reads.append((time.monotonic(), data))
                self._buffer += data
                continue
            frame = bytes(self._buffer[: cut + 2])
            del self._buffer[: cut + 2]
            if frame.startswith(b":"):
                self.comments += 1
            elif frame == b"data: [DONE]\n\n":
                assert not self.is_done, "[DONE] came twice"
                self.is_done = True
            else:
                assert not self.is_done, f"an event after [DONE]: {frame!r}"
                self.frames.append(frame)
                return decode(frame)

    async def until(self, kind: str, *, count: int = 1) -> JSON:
        """Reads until the `count`-th further event of this type; returns it."""
        while (event := await self.next()) is not None:
            count -= event["type"] == kind
            if count == 0:
                return event
        raise AssertionError(
            f"the stream ended before {kind}: {[event['type'] for event in self.events][-5:]}"
        )

    async def to_end(self) -> list[JSON]:
        """Reads to the end of the stream; returns all its events, also those read before."""
        while await self.next() is not None:
            pass
        return self.events


@dataclass(slots=True)
class Api:
    """A client of one web process with one API key."""

    base_url: str
    """With `/v1`."""
    key: str
    session: aiohttp.ClientSession

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}", **(headers or {})}

    async def call(
        self,
        method: str,
        path: str,
        body: JSON | bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | list[tuple[str, str]] | None = None,
    ) -> HttpResponse:
        """Sends one request and reads the whole answer.

        A `body` of bytes is sent unchanged, as JSON.
        """
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        data = None if sent is None else io.BytesIO(sent)
        fields = self._headers(
            {"content-type": "application/json", **(headers or {})} if data is not None else headers
        )
        async with self.session.request(
            method, f"{self.base_url}{path}", data=data, headers=fields, params=params
        ) as answer:
            return HttpResponse(answer.status, answer.headers, await answer.read())

    async def create(self, model: str, **body: Any) -> JSON:
        """POST /responses, which must succeed. `input` has a default."""
        answer = await self.call("POST", "/responses", {"model": model, "input": "Hello.", **body})
        assert answer.status == 200, answer.raw
        return answer.body

    async def create_background(self, model: str, **body: Any) -> str:
        """Creates a background response without a stream; returns its id."""
        return cast("str", (await self.create(model, background=True, **body))["id"])

    async def get(self, response_id: str) -> JSON:
        """GET /responses/{id}, which must succeed."""
        answer = await self.call("GET", f"/responses/{response_id}")
        assert answer.status == 200, answer.raw
        return answer.body

    async def cancel(self, response_id: str) -> HttpResponse:
        """POST …/cancel as the SDK sends it: a JSON content type and no body."""
        return await self.call("POST", f"/responses/{response_id}/cancel", b"")

    async def wait_for_end(self, response_id: str, within: float = 30) -> JSON:
        """Polls until the response is terminal; returns it."""

        async def terminal() -> JSON | None:
            response = await self.get(response_id)
            return response if response["status"] in TERMINAL else None

        ended = await until(terminal, within, every=0.05)
        assert ended is not None
        return ended

    @asynccontextmanager
    async def post_stream(self, model: str, **body: Any) -> AsyncIterator[Stream]:
        """POST /responses with `stream: true`."""
        data = io.BytesIO(
            json.dumps({"model": model, "input": "Hello.", "stream": True, **body}).encode()
        )
        fields = self._headers({"content-type": "application/json"})
        async with self.session.post(
            f"{self.base_url}/responses", data=data, headers=fields
        ) as answer:
            yield await _open_stream(answer)

    @asynccontextmanager
    async def follow(self, response_id: str, after: int | None = None) -> AsyncIterator[Stream]:
        """GET …?stream=true, from the event behind number `after`."""
        params = {"stream": "true", **({} if after is None else {"starting_after": str(after)})}
        url = f"{self.base_url}/responses/{response_id}"
        async with self.session.get(url, params=params, headers=self._headers(None)) as answer:
            yield await _open_stream(answer)

    async def replay(self, response_id: str, after: int | None = None) -> list[bytes]:
        """The frames behind number `after`, to the end."""
        async with self.follow(response_id, after) as stream:
            await stream.to_end()
            return stream.frames


async def _open_stream(answer: aiohttp.ClientResponse) -> Stream:
    if answer.status != 200:
        raise StreamRefused(answer.status, await answer.text())
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
    return Stream(answer.headers, answer.content)
