"""The proxy through which code reaches hosts, with connections that misbehave."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from features.code.sandbox import proxy
from features.code.sandbox.proxy import BUFFER, CodeConnection, Destinations, HostTraffic, Target
from models.egress import FetchTarget
from models.hosts import AllowedHosts

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class _LocalGuard:
    port: int

    def check(self, url: str) -> FetchTarget:
        return FetchTarget(url, "http", "a.example", self.port)

    async def addresses(self, target: Target) -> list[str]:
        assert target.host == "a.example"
        return ["127.0.0.1"]


async def _exchange(handler: Handler | None, sent: bytes, *, reads: bool = True) -> bytes:
    """What code gets until the connection ends. `handler`: of the host; None: it is away."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = await asyncio.start_server(handler, sock=listening) if handler else None
        if server is None:
            listening.close()
        ours, theirs = socket.socketpair()
        code = await asyncio.open_connection(sock=ours, limit=BUFFER)
        hosts = AllowedHosts({"a.example": frozenset({port})})
        connection = CodeConnection(code, Destinations(hosts, _LocalGuard(port)), HostTraffic())
        reader, writer = await asyncio.open_connection(sock=theirs)
        serving = asyncio.create_task(connection.serve())
        writer.write(sent)
        got = await reader.read() if reads else b""
        await serving
        writer.close()
        if server is not None:
            server.close()
        return got


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_IDLE_TIME", 0.2)
    monkeypatch.setattr(proxy, "_HEAD_TIME", 0.2)


GET = b"GET http://a.example/x HTTP/1.1\r\nProxy-A: b\r\nHost: other\r\nC: d\r\n\r\n"


async def test_the_host_gets_the_request_without_what_is_the_proxys() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    expected = b"GET /x HTTP/1.1\r\nHost: a.example\r\nC: d\r\nConnection: close\r\n\r\n"
    assert await _exchange(answer, GET) == expected


async def test_a_connection_in_which_nothing_passes_ends() -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    assert await _exchange(wait, GET) == b""
    await ended.wait()


async def test_code_that_does_not_read_keeps_nothing_open() -> None:
    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(BUFFER))
                await writer.drain()
        except ConnectionError:
            writer.close()

    await _exchange(flood, GET, reads=False)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01", b"400"),
        (b"GET http://a.example/" + bytes(2 * BUFFER), b"400"),
        (b"GET / FTP\r\n\r\n", b"400"),
        (b"CONNECT a.example HTTP/1.1\r\n\r\n", b"502"),
        (b"GET http", None),
    ],
)
async def test_what_cannot_be_done_is_answered(sent: bytes, status: bytes | None) -> None:
    got = await _exchange(None, sent)
    assert got.split(b" ")[1:2] == ([] if status is None else [status])
