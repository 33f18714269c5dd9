"""Bounded memory (I12): what is slow, hung or enormous costs a bounded buffer, and nothing that was said is lost by it.

Bounds are about twice what was measured, and a fraction of what keeping everything would take; docs/guarantees.md has the figures.
BACKBURNER_STREAMS=1000 runs the last test at the size that one worker is made for.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import pytest

from tests.support.api import Stream, decode, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Step,
    done,
    finish,
    text,
    usage,
    wait_for,
)
from tests.support.stack import RUNNING_STACKS, Databases, Service, Stack, SuiteSettings, stack
from tests.support.upstream_faults import memory_growth, text_event

pytestmark = pytest.mark.long

MB = 1_000_000
STREAMS = int(os.environ.get("BACKBURNER_STREAMS", "150"))  # noqa: TID251  # an option of this test, not of the product


@pytest.fixture(scope="module")
async def crowd(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process, one worker, and a proxy before each server."""
    folder = tmp_path_factory.mktemp("crowd")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        streams=1200,
        proxied=True,
        settings={"BACKBURNER_WEB__SEND_TIMEOUT": "5"},
        allowed_tracebacks=("psycopg.", "redis.exceptions.", "kombu.exceptions."),
    ) as one:
        await asyncio.gather(
            *(one.api().create(fake.script([text("warm"), finish(), done()])) for _ in range(50))
        )
        yield one
    RUNNING_STACKS.remove(one)


@pytest.fixture
def web(crowd: Stack) -> Service:
    return crowd.webs[0]


@pytest.fixture
def worker(crowd: Stack) -> Service:
    return crowd.workers[0]


@dataclass
class Flood:
    """Upstreams that talk as fast as anybody listens, until they are told to end."""

    piece: bytes = text_event("x" * 1000)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    """Bytes, all streams together."""

    def step(self) -> Step:
        async def step(exchange: Exchange) -> None:
            while not self.over.is_set():
                await exchange.write(self.piece)
                self.sent += len(self.piece)
                await asyncio.sleep(0)

        return step

    async def stalls(self) -> None:
        """Returns once nobody has taken anything for a second."""
        seen, still = -1, 0

        def is_still() -> bool:
            nonlocal seen, still
            still = still + 1 if self.sent == seen else 0
            seen = self.sent
            return still >= 10

        await until(is_still, 30, every=0.1)


async def test_outputs_of_5_mb_at_once(
    crowd: Stack, web: Service, worker: Service, fake: FakeUpstream
) -> None:
    """Each in one delta: said four times in the stream, twice of it in the last event."""
    model = fake.script([text("x" * 5 * MB), finish(), usage(), done()])
    api = crowd.api()

    async def all_three() -> list[str]:
        ids = await asyncio.gather(*(api.create_background(model) for _ in range(3)))
        return [(await api.wait_for_end(name))["output_text"] for name in ids]

    (texts, grown), grown_web = await memory_growth([web], memory_growth([worker], all_three()))
    print(f"5 MB outputs, three at once: worker +{grown / MB:.0f} MB, web +{grown_web / MB:.0f} MB")
    assert [len(one) for one in texts] == [5 * MB] * 3
    assert grown < 280 * MB
    assert grown_web < 280 * MB


async def test_readers_that_do_not_read(crowd: Stack, web: Service, fake: FakeUpstream) -> None:
    """10 000 deltas and the events that repeat them, 45 MB in all, to forty readers who take nothing: 1.8 GB would have to wait for them."""
    opened = asyncio.Event()
    model = fake.script(
        [text("first"), wait_for(opened), text(*["x" * 700] * 10_000), finish(), usage(), done()]
    )
    response_id = await crowd.api().create_background(model)

    async def told() -> int:
        opened.set()
        await _completed(crowd, response_id)
        return len((await crowd.api().get(response_id))["output_text"])

    with ExitStack() as readers:
        for _ in range(40):
            readers.enter_context(_deaf_reader(crowd, response_id))
        size, grown = await memory_growth([web], told())
        print(f"40 readers who do not read 45 MB: web +{grown / MB:.0f} MB")
        assert size == 7_000_005
        assert grown < 800 * MB
        frames = await crowd.api().replay(response_id)
        assert len(assert_one_stream(frames)) > 10_000
        await until(lambda: web.log.read_text().count("slow_client_disconnected") >= 40, 30)


async def test_a_hung_postgres_stops_the_upstreams(
    crowd: Stack, worker: Service, fake: FakeUpstream
) -> None:
    flood = Flood()
    model = fake.script([flood.step(), finish(), usage(), done()])
    ids = [await crowd.api().create_background(model) for _ in range(8)]
    await until(lambda: len(fake.requests_for(model)) == 8)
    worker.proxies.postgres.hang()
    before = flood.sent
    _, grown = await memory_growth([worker], flood.stalls())
    print(
        f"8 floods before a hung Postgres: worker +{grown / MB:.0f} MB, {(flood.sent - before) / MB:.0f} MB taken"
    )
    flood.over.set()
    worker.proxies.postgres.heal()
    assert grown < 100 * MB
    for name in ids:
        await _completed(crowd, name)
    assert len(fake.requests_for(model)) == 8, "nobody had to begin again"


async def test_a_hung_redis_is_left_out(crowd: Stack, worker: Service, fake: FakeUpstream) -> None:
    model = fake.script([text(*["x" * 1000] * 2_000), finish(), usage(), done()])

    async def all_told() -> None:
        for _ in range(4):
            for name in [await crowd.api().create_background(model) for _ in range(5)]:
                await _completed(crowd, name)

    await all_told()  # what the responses themselves take
    worker.proxies.redis.hang()
    _, grown = await memory_growth([worker], all_told())
    worker.proxies.redis.heal()
    print(f"170 MB shown while Redis hangs: worker +{grown / MB:.0f} MB")
    assert grown < 150 * MB


async def test_many_streams(
    crowd: Stack, web: Service, worker: Service, fake: FakeUpstream
) -> None:
    """Each with a reader: what one stream and its reader cost while they last, and that it is given back to the next ones."""
    opened = asyncio.Event()
    model = fake.script(
        [text("a"), wait_for(opened), text(*"bcdefghij", gap=0.1), finish(), usage(), done()]
    )

    async def all_stream() -> list[Stream]:
        async with AsyncExitStack() as open_streams:
            streams = [
                await open_streams.enter_async_context(
                    crowd.api().post_stream(model, background=True)
                )
                for _ in range(STREAMS)
            ]
            await asyncio.gather(
                *(stream.until("response.output_text.delta") for stream in streams)
            )
            opened.set()
            await asyncio.gather(*(stream.to_end() for stream in streams))
            return streams

    (streams, grown), grown_web = await memory_growth([web], memory_growth([worker], all_stream()))
    print(
        f"{STREAMS} streams: worker +{grown / STREAMS / 1000:.0f} KB each, web +{grown_web / STREAMS / 1000:.0f} KB each"
    )
    assert {stream.final["output_text"] for stream in streams} == {"abcdefghij"}
    assert all(
        [decode(frame)["sequence_number"] for frame in stream.frames]
        == list(range(len(stream.frames)))
        for stream in streams
    )
    assert grown < STREAMS * 200_000 + 20 * MB
    assert grown_web < STREAMS * 200_000 + 20 * MB


async def _completed(crowd: Stack, response_id: str) -> None:
    """Waits in the database: a GET of a running response of 10 MB is work of its own."""
    question = "SELECT status = 'completed' FROM responses WHERE id = %s::uuid"
    await until(lambda: crowd.value(question, response_id.removeprefix("resp_")), 60, every=0.1)


def _deaf_reader(crowd: Stack, response_id: str) -> socket.socket:
    """A client that asks for the stream and takes nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", crowd.webs[0].port))
    head = f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {crowd.key}\r\n\r\n"
    connection.sendall(head.encode())
    return connection
