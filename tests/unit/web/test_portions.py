"""What a connection has received is parsed in portions: a request when the one before it is
answered, and only so much at a time that other connections go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from models.config.web import WebSettings
from models.errors import TooManyUnknownKeys
from tests.support.api import until
from web.http.clients import Connections, KeyGuesses, client_network
from web.http.protocol import HttpProtocol

_GET = b"GET / HTTP/1.1\r\n\r\n"


class _Application:
    """Answers each request with the length of its body and `rest`, if it may."""

    def __init__(self, settings: WebSettings | None = None) -> None:
        self.connections = Connections(settings or WebSettings(), lambda _error, _request: None)
        self.pieces: list[int] = []
        self.begun = 0
        self.may_answer = asyncio.Event()
        self.rest = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        size, has_more = 0, True
        while has_more:
            message = await receive()
            self.pieces.append(len(message["body"]))
            size, has_more = size + self.pieces[-1], message["more_body"]
        await self.may_answer.wait()
        body = b"<%d>" % size + self.rest
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def _connection(
    application: _Application, protocols: list[HttpProtocol]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(
        application, http=HttpProtocol, ws="none", lifespan="off", log_config=None
    )
    config.load()

    def accept() -> HttpProtocol:
        protocols.append(HttpProtocol(config, ServerState(), {}))
        return protocols[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def test_requests_wait_unparsed_until_the_one_before_is_answered() -> None:
    application = _Application()
    protocols: list[HttpProtocol] = []
    async with _connection(application, protocols) as (reader, writer):
        writer.write(_GET * 1000)
        await until(lambda: protocols and protocols[0].flow.read_paused)
        await until(lambda: application.begun == 1)
        assert not protocols[0].pipeline
        application.may_answer.set()
        async with asyncio.timeout(10):
            for _ in range(1000):
                await reader.readuntil(b"<0>")
        assert not protocols[0].flow.read_paused


async def test_a_client_without_a_key_that_reads_nothing_is_disconnected() -> None:
    application = _Application(WebSettings(send_timeout=timedelta(milliseconds=10)))
    application.may_answer.set()
    application.rest = b"x" * 1024 * 1024
    protocols: list[HttpProtocol] = []
    async with _connection(application, protocols) as (_reader, writer):
        writer.write(_GET * 1000)
        await until(lambda: protocols and protocols[0].transport.is_closing())


async def test_a_body_of_tiny_chunks_is_parsed_over_many_turns_of_the_event_loop() -> None:
    application = _Application()
    application.may_answer.set()
    async with _connection(application, []) as (reader, writer):
        head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        await reader.readuntil(b"<100000>")
    assert max(application.pieces) < 1000


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1%eth0", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_the_addresses_of_an_ipv6_client_count_as_one(address: str, network: str) -> None:
    assert client_network(address) == network


async def test_guesses_from_one_ipv6_network_share_a_rate() -> None:
    guesses = KeyGuesses(1)
    with pytest.raises(TooManyUnknownKeys):
        await asyncio.gather(*(guesses.delay(f"2001:db8::{number:x}") for number in range(1, 40)))


def test_connections_from_one_ipv6_network_share_their_limit() -> None:
    connections = _Application().connections
    connections.settings = WebSettings(connections_per_address=1)
    assert connections.admit(client_network("2001:db8::1"))
    assert not connections.admit(client_network("2001:db8::2"))
