"""The proxy that other tests stand on: each fault is the one it is called."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest

from tests.support.chaos.proxy import Proxy
from tests.support.chaos.wire import Statements
from tests.support.stack import Databases


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """Before a server that sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await reader.read(1000):
            writer.write(received)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy("127.0.0.1", server.sockets[0].getsockname()[1])
    yield proxy
    await proxy.close()
    server.close()
    await server.wait_closed()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, words: bytes) -> bytes:
        """What comes back; empty at the end of the connection."""
        self.writer.write(words)
        return await self.hear()

    async def hear(self) -> bytes:
        """What comes next."""
        try:
            return await self.reader.read(1000)
        except ConnectionError:
            return b""


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncIterator[Connect]:
    """Makes clients of the proxy; they leave with the test."""
    clients: list[Client] = []

    async def connected() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port)))
        return clients[-1]

    yield connected
    for client in clients:
        client.writer.close()


async def greeted(connect: Connect) -> Client:
    """A client that has been answered."""
    client = await connect()
    assert await client.ask(b"hello") == b"hello"
    return client


async def test_latency(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    proxy.latency(0.2)
    begun = time.monotonic()
    assert await client.ask(b"slow") == b"slow"
    assert time.monotonic() - begun >= 0.2


async def test_refused_and_healed(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    proxy.refuse()
    assert await client.hear() == b""
    with pytest.raises(ConnectionRefusedError):
        await connect()
    proxy.heal()
    await greeted(connect)


async def test_hung_and_healed(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    proxy.hang()
    newcomer = await connect()
    waiting = asyncio.gather(client.ask(b"one"), newcomer.ask(b"two"))
    _, unheard = await asyncio.wait({waiting}, timeout=0.2)
    assert unheard
    proxy.heal()
    assert [*await waiting] == [b"one", b"two"]


async def test_cut(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    proxy.cut()
    assert await client.hear() == b""
    await greeted(connect)


async def test_cut_after_some_bytes(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    proxy.cut_after(5)
    assert await client.ask(b"four") == b"four"
    assert await client.ask(b"more") == b""
    await greeted(connect)


async def test_an_answer_is_held_and_let_go(proxy: Proxy, connect: Connect) -> None:
    client = await greeted(connect)
    snare = proxy.hold_answer(b"bait")
    assert await client.ask(b"nothing") == b"nothing"
    echo = asyncio.create_task(client.ask(b"a bait"))
    await snare.answered.wait()
    assert not echo.done()
    snare.release()
    assert await echo == b"a bait"
    assert await client.ask(b"a bait") == b"a bait", "a snare catches once"


async def test_a_statement_whose_answer_is_lost_was_executed(database_server: Databases) -> None:
    dsn = await database_server.create_copy()
    before = psycopg.conninfo.conninfo_to_dict(database_server.admin_url)
    assert isinstance(before["host"], str)
    proxy = Proxy(before["host"], int(before["port"] or 5432), Statements)
    async with await psycopg.AsyncConnection.connect(proxy.url(dsn), autocommit=True) as connection:
        for number in range(8):  # from the sixth on it is a prepared one
            await connection.execute(
                "INSERT INTO projects (id, name) VALUES (gen_random_uuid(), %s)",
                [f"number {number}"],
            )
        snare = proxy.hold_answer(b"INSERT INTO projects")
        snare.lose()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(
                "INSERT INTO projects (id, name) VALUES (gen_random_uuid(), %s)", ["unheard"]
            )
        assert snare.answered.is_set()
    async with await psycopg.AsyncConnection.connect(
        proxy.url(database_server.admin_url)
    ) as connection:
        cursor = await connection.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute("SELECT count(*) FROM projects WHERE name = 'unheard'")
        assert await cursor.fetchone() == (1,)
    await proxy.close()
