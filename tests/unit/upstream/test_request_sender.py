"""Requests to an upstream, and which of them are sent again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.errors import UpstreamFailed
from worker.metrics import UPSTREAM_RETRIES
from worker.translation.upstream_events import ChatChunk
from worker.upstream import request_sender
from worker.upstream.client import StreamEvent, Upstream

BODY = {"model": "m", "messages": [{"role": "user", "content": "héllo ☃"}], "stream": True}
ANSWER = (
    b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
UNENDED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n" % (len(ANSWER), ANSWER)
)
END = b"0\r\n\r\n"
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after-ms: 1\r\ncontent-length: 2\r\n\r\n{}"
)
HANG_UP = b""


@dataclass
class RawServer:
    """Reads requests as bytes and sends its replies in order. `HANG_UP` closes the connection
    instead. `UNENDED` is ended when the test says so."""

    replies: list[bytes]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection was closed by the client before the end of a body."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with_body = True
        while with_body:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next(
                int(line.partition(b":")[2])
                for line in head.splitlines()
                if line.lower().startswith(b"content-length:")
            )
            self.requests.append(head + await reader.readexactly(length))
            reply = self.replies.pop(0)
            with_body = reply != HANG_UP
            writer.write(reply)
            if reply == UNENDED:
                await self._wait_until_it_may_end(reader)
                writer.write(END)
        writer.close()

    async def _wait_until_it_may_end(self, reader: asyncio.StreamReader) -> None:
        closed = asyncio.create_task(reader.read(1))
        may_end = asyncio.create_task(self.may_end.wait())
        await asyncio.wait((closed, may_end), return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            self.lost.set()
        closed.cancel()
        may_end.cancel()
        await asyncio.wait((closed, may_end))

    def header(self, name: str) -> list[str]:
        """The values of a header in each request."""
        return [
            line.partition(b": ")[2].decode()
            for request in self.requests
            for line in request.partition(b"\r\n\r\n")[0].splitlines()
            if line.lower().startswith(name.encode() + b":")
        ]


@asynccontextmanager
async def raw_server(*replies: bytes) -> AsyncIterator[RawServer]:
    raw = RawServer(list(replies))
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()


@asynccontextmanager
async def upstream_at(url: str, **settings: Any) -> AsyncIterator[Upstream]:
    upstream = Upstream(
        UpstreamSettings.model_validate({"base_url": url, "api_key": "secret", **settings}),
        LimitSettings(),
        8,
    )
    try:
        yield upstream
    finally:
        await upstream.close()


async def texts(upstream: Upstream, body: dict[str, Any] = BODY) -> list[str]:
    """The texts that a call gets."""
    events: list[StreamEvent] = []
    await upstream.call(body).read(events.extend)
    return [event.content for event in events if isinstance(event, ChatChunk)]


@pytest.mark.parametrize(
    ("api", "path"), [("chat", "/v1/chat/completions"), ("responses", "/v1/responses")]
)
async def test_a_request_has_the_operators_address_key_and_headers(api: str, path: str) -> None:
    options: dict[str, Any] = {
        "api": api,
        "headers": {"X-Own": "1", "api-key": "k", "Accept": "text/event-stream"},
        "query": {"api-version": "2030-01-01"},
    }
    failed = b'HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n{"error":{"message":"x"}}'
    async with raw_server(failed) as server, upstream_at(server.url, **options) as ours:
        with pytest.raises(UpstreamFailed):
            await texts(ours)
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        request_line, *lines = head.decode().split("\r\n")
        host = f"127.0.0.1:{server.port}"
    assert request_line == f"POST {path}?api-version=2030-01-01 HTTP/1.1"
    assert sorted(line.lower() for line in lines) == [
        "accept-encoding: identity",
        "accept: text/event-stream",
        "api-key: k",
        "authorization: bearer secret",
        f"content-length: {len(body)}",
        "content-type: application/json",
        f"host: {host}",
        "user-agent: backburner",
        "x-own: 1",
    ]
    assert orjson.loads(body) == BODY


@pytest.mark.parametrize(
    ("status", "headers", "tries"),
    [
        (408, "", 2),
        (409, "", 2),
        (429, "retry-after: 0", 2),
        (500, "", 2),
        (529, "retry-after-ms: 2", 2),
        (400, "", 1),
        (404, "", 1),
        (400, "x-should-retry: true", 2),
        (503, "x-should-retry: false", 1),
        (503, "retry-after: 9", 1),
        (503, "retry-after: Fri, 31 Dec 2100 23:59:59 GMT", 1),
        (503, "retry-after: soon", 2),
        (302, "location: http://127.0.0.1:1/", 1),
    ],
)
async def test_a_refusal_is_repeated_if_another_try_may_succeed_soon(
    status: int, headers: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_sender, "_FIRST_PAUSE", 0.001)
    refusal = f"HTTP/1.1 {status} No\r\n{headers}{headers and chr(13) + chr(10)}"
    reply = f"{refusal}content-length: 2\r\n\r\n{{}}".encode()
    async with (
        raw_server(reply, OK) as server,
        upstream_at(server.url, max_retries=1) as upstream,
    ):
        if tries == 2:
            assert await texts(upstream) == ["hi"]
        else:
            with pytest.raises(UpstreamFailed) as refused:
                await texts(upstream)
            assert refused.value.reason == f"upstream_{status}"
        assert len(server.requests) == tries


async def test_failed_tries_are_counted_and_repeated() -> None:
    async with raw_server(UNAVAILABLE, HANG_UP, OK) as server, upstream_at(server.url) as upstream:
        before = UPSTREAM_RETRIES.labels(UpstreamSettings().name)._value.get()
        assert await texts(upstream) == ["hi"]
        assert UPSTREAM_RETRIES.labels(UpstreamSettings().name)._value.get() == before + 2
        assert [orjson.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests] == [
            BODY
        ] * 3


async def test_each_try_continues_the_trace_where_that_is_asked_for() -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with raw_server(UNAVAILABLE, OK, OK) as server, upstream_at(server.url) as upstream:
        await upstream.call(BODY, traceparent).read(lambda _: None)
        assert server.header("traceparent") == [traceparent] * 2
        assert await texts(upstream) == ["hi"]
        assert b"traceparent" not in server.requests[-1]


async def test_no_request_is_repeated_where_retries_are_off() -> None:
    async with (
        raw_server(UNAVAILABLE, HANG_UP) as server,
        upstream_at(server.url, max_retries=0) as upstream,
    ):
        with pytest.raises(UpstreamFailed) as refused:
            await texts(upstream)
        with pytest.raises(UpstreamFailed) as hung_up:
            await texts(upstream)
        assert (refused.value.reason, hung_up.value.reason) == (
            "upstream_503",
            "upstream_unreachable",
        )
        assert len(server.requests) == 2


async def test_a_connection_is_used_again_and_replaced_when_the_upstream_has_closed_it() -> None:
    async with raw_server(OK, OK, HANG_UP, OK) as server, upstream_at(server.url) as upstream:
        for _ in range(2):
            await texts(upstream)
        assert server.connections == 1
        assert await texts(upstream) == ["hi"]
        assert server.connections == 2


async def test_a_connection_is_used_again_if_the_body_ends_after_its_last_event() -> None:
    async with (
        raw_server(UNENDED, OK) as server,
        raw_server(OK) as other,
        upstream_at(server.url) as upstream,
        upstream_at(other.url) as other_upstream,
    ):
        await texts(upstream)
        server.may_end.set()
        await texts(other_upstream)  # by then the end has arrived
        await texts(upstream)
        assert server.connections == 1


async def test_a_body_that_does_not_end_after_its_last_event_is_closed() -> None:
    async with raw_server(UNENDED) as server, upstream_at(server.url) as upstream:
        await texts(upstream)
        async with asyncio.timeout(10):
            await server.lost.wait()


async def test_a_request_goes_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with raw_server(OK, UNAVAILABLE, OK) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with upstream_at("http://upstream.test/v1") as upstream:
            for _ in range(2):
                assert await texts(upstream) == ["hi"]
        lines = {request.partition(b"\r\n")[0] for request in proxy.requests}
    assert lines == {b"POST http://upstream.test/v1/chat/completions HTTP/1.1"}


async def test_a_body_that_the_fast_encoder_refuses_is_sent_all_the_same() -> None:
    body = {**BODY, "seed": 1 << 80}
    async with raw_server(OK) as server, upstream_at(server.url) as upstream:
        assert await texts(upstream, body) == ["hi"]
        assert str(1 << 80).encode() in server.requests[0]


class _OneFile:
    """A file of a request, and what is asked of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_held = False
        self.holds = 0

    async def hold(self) -> None:
        self.holds += not self.is_held
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def data_url_pieces(self) -> Iterator[bytes]:
        assert self.is_held
        yield b"data:text/plain;base64,"
        yield b"x" * self.size


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_each_try_sends_the_files_and_keeps_them_no_longer(size: int) -> None:
    file = _OneFile(size)
    body = {**BODY, "messages": [{"role": "user", "content": [file]}]}
    async with raw_server(UNAVAILABLE, OK) as server, upstream_at(server.url) as upstream:
        held: list[bool] = []
        await upstream.call(body, None, file).read(lambda _: held.append(file.is_held))
        assert held == [False], "the answer may take an hour"
        for request in server.requests:
            sent = orjson.loads(request.partition(b"\r\n\r\n")[2])
            assert len(sent["messages"][0]["content"][0]) == size + 23
    assert len(server.requests) == 2
    assert file.holds == (2 if size > 10 else 1)
