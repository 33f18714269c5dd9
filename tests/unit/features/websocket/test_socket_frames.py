"""Many frames of one WebSocket leave time for other connections, and fill no buffer."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState
from websockets.frames import Frame

from features.websocket.messages import Messages
from features.websocket.web import WebSocketProtocol
from models.load.budget import SharedBudget
from tests.support.api import until

_MASK = b"\0\0\0\0"
_PING = b"\x89\x80" + _MASK
_PONG = b"\x8a\x00"
_CLOSE = b"\x88\x82" + _MASK + b"\x03\xe8"
_HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class _Transport(asyncio.Transport):
    """Keeps what is written. With a `limit` the client reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: WebSocketProtocol | None = None
        self.written = bytearray()
        self.limit: int | None = None
        self.reads = True
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if self.limit is not None and len(self.written) > self.limit and self.protocol is not None:
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class _Connection:
    """An accepted connection, and the messages that the application has got."""

    def __init__(self, transport: _Transport) -> None:
        self.transport = transport
        self.bodies = SharedBudget("bytes", 10**9, 0)
        self.texts: list[str] = []
        self.messages: Messages = cast("Messages", None)
        self.protocol: WebSocketProtocol = cast("WebSocketProtocol", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.messages = scope["state"]["messages"]
        self.messages.begin(self.bodies, "a project", 60.0)
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            self.texts.append(message["text"])


@asynccontextmanager
async def _opened() -> AsyncIterator[_Connection]:
    application = _Connection(_Transport())
    config = uvicorn.Config(
        cast("Any", application), ws=WebSocketProtocol, ws_max_size=10**8, log_config=None
    )
    config.load()
    protocol = WebSocketProtocol(config, ServerState(), {})
    application.protocol = application.transport.protocol = protocol
    protocol.connection_made(application.transport)
    protocol.data_received(_HANDSHAKE)
    await until(lambda: application.transport.written.endswith(b"\r\n\r\n"))
    await until(lambda: application.transport.reads)
    application.transport.written.clear()
    yield application
    protocol.connection_lost(None)
    await asyncio.gather(*protocol.tasks)


@pytest.fixture
async def connection() -> AsyncIterator[_Connection]:
    async with _opened() as opened:
        yield opened


def _text(content: bytes) -> bytes:
    return b"\x81" + bytes([0x80 | len(content)]) + _MASK + content


async def test_many_frames_take_many_turns_of_the_event_loop(connection: _Connection) -> None:
    transport, pongs = connection.transport, []
    connection.protocol.data_received(_PING * 10_000 + _text(b"after them"))
    assert not transport.reads, "the rest comes first"
    while not connection.texts:
        pongs.append(transport.written.count(_PONG))
        await asyncio.sleep(0)
    turns = [later - before for before, later in pairwise(pongs)]
    assert max([pongs[0], *turns]) < 1000
    assert transport.written == _PONG * 10_000
    assert connection.texts == ["after them"]
    await until(lambda: transport.reads)


async def test_a_message_that_was_read_leaves_no_copy_in_the_parser(
    connection: _Connection,
) -> None:
    connection.protocol.data_received(_text(b"read"))
    await until(lambda: connection.texts)
    frames = [each for each in gc.get_objects() if type(each) is Frame and each.data == b"read"]
    assert frames == []


async def test_connections_that_send_many_frames_go_on_in_turn() -> None:
    """However many connections of a project send, few go on in one turn."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(_opened()) for _ in range(8)]
        for other in others:
            other.protocol.data_received(_PING * 5000)
        pongs = [0]
        while pongs[-1] < 8 * 5000:
            await asyncio.sleep(0)
            pongs.append(sum(other.transport.written.count(_PONG) for other in others))
        assert max(later - before for before, later in pairwise(pongs)) < 2000


async def test_pongs_that_are_not_read_stop_the_reading(connection: _Connection) -> None:
    transport, protocol = connection.transport, connection.protocol
    transport.limit = 4000
    protocol.data_received(_PING * 16_000 + _text(b"after them"))
    await until(lambda: not protocol.writable.is_set())
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(transport.written) < 5000
    assert not transport.reads
    assert not connection.texts
    assert connection.bodies.used > 64 * 1024, "what waits is counted"
    transport.limit = None
    protocol.resume_writing()
    await until(lambda: bool(connection.texts))
    assert transport.written == _PONG * 16_000
    await until(lambda: transport.reads)
    assert connection.bodies.used == 0


async def test_a_close_among_many_frames_ends_the_connection(connection: _Connection) -> None:
    connection.protocol.data_received(_PING * 2000 + _CLOSE + _text(b"too late") * 1000)
    await until(lambda: connection.transport.is_closed)
    assert connection.transport.written == _PONG * 2000 + b"\x88\x02\x03\xe8"
    for _ in range(20):
        await asyncio.sleep(0)
    assert not connection.texts


async def test_what_a_lost_connection_has_sent_is_dropped(connection: _Connection) -> None:
    connection.protocol.data_received(_PING * 2000 + _text(b"too late"))
    await asyncio.sleep(0)
    connection.transport.close()
    written = len(connection.transport.written)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not connection.texts
    assert len(connection.transport.written) <= written


@pytest.mark.parametrize(
    ("begin", "frame"),
    [
        pytest.param(b"", _PING, id="pings"),
        pytest.param(b"", b"\x8a\x80" + _MASK, id="pongs"),
        pytest.param(b"\x01\x80" + _MASK, b"\x00\x80" + _MASK, id="empty fragments"),
    ],
)
async def test_frames_without_content_are_limited(
    connection: _Connection, begin: bytes, frame: bytes
) -> None:
    connection.protocol.data_received(begin + frame * 17_000)
    await until(lambda: connection.protocol.close_sent)
    sent = bytes(connection.transport.written)
    assert b'"code":"websocket_too_many_frames"' in sent
    assert sent.endswith((1008).to_bytes(2, "big") + b"too many frames")
    assert not connection.texts


async def test_fragments_with_content_are_not_limited(connection: _Connection) -> None:
    content = b"x" * 1024
    fragment = b"\xfe" + (1024).to_bytes(2, "big") + _MASK + content
    connection.protocol.data_received(
        b"\x01" + fragment + (b"\x00" + fragment) * 17_000 + b"\x80\x80" + _MASK
    )
    await until(lambda: bool(connection.texts))
    assert len(connection.texts[0]) == 17_001 * 1024


async def test_empty_fragments_are_no_progress_of_a_message(connection: _Connection) -> None:
    connection.messages.pause = 0.1
    connection.protocol.data_received(b"\x01\x81" + _MASK + b"{")

    def is_refused() -> bool:
        connection.protocol.data_received((b"\x00\x80" + _MASK) * 200)
        return connection.protocol.close_sent

    await until(is_refused)
    assert b'"code":"request_timeout"' in connection.transport.written
