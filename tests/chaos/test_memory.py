"""Bounded memory (I12): slow readers, hung servers and large outputs cost a bounded buffer.

No output is lost. Bounds are about twice the measured values and a fraction of what buffering all
would take; docs/guarantees.md has the values. BACKBURNER_STREAMS=1000 runs the last test at the
size that one worker is made for.
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
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
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
STREAMS = int(os.environ.get("BACKBURNER_STREAMS", "150"))  # noqa: TID251  # of this test only


@pytest.fixture(scope="module")
async def loaded_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process and one worker, each with a proxy before each server."""
    folder = tmp_path_factory.mktemp("memory")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        streams=1200,
        proxied=True,
        settings={"BACKBURNER_WEB__SEND_TIMEOUT": "5"},
        allowed_tracebacks=SERVER_TRACEBACKS,
    ) as running:
        await asyncio.gather(
            *(
                running.api().create(fake.script([text("warm"), finish(), done()]))
                for _ in range(50)
            )
        )
        yield running
    RUNNING_STACKS.remove(running)


@pytest.fixture
def web(loaded_stack: Stack) -> Service:
    return loaded_stack.webs[0]


@pytest.fixture
def worker(loaded_stack: Stack) -> Service:
    return loaded_stack.workers[0]


@dataclass
class Flood:
    """An upstream that sends as fast as it is read, until `over` is set."""

    piece: bytes = text_event("x" * 1000)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    """Bytes of all streams together."""

    def step(self) -> Step:
        async def step(exchange: Exchange) -> None:
            while not self.over.is_set():
                await exchange.write(self.piece)
                self.sent += len(self.piece)
                await asyncio.sleep(0)

        return step

    async def stalls(self) -> None:
        """Returns when nothing was read for a second."""
        last_sent, unchanged = -1, 0

        def is_unchanged() -> bool:
            nonlocal last_sent, unchanged
            unchanged = unchanged + 1 if self.sent == last_sent else 0
            last_sent = self.sent
            return unchanged >= 10

        await until(is_unchanged, 30, every=0.1)


async def test_outputs_of_5_mb_cost_a_bounded_buffer(
    loaded_stack: Stack, web: Service, worker: Service, fake: FakeUpstream
) -> None:
    """Each output is one delta. The stream has it four times, twice of that in the last event."""
    model = fake.script([text("x" * 5 * MB), finish(), usage(), done()])
    api = loaded_stack.api()

    async def run_three() -> list[str]:
        ids = await asyncio.gather(*(api.create_background(model) for _ in range(3)))
        return [(await api.wait_for_end(response_id))["output_text"] for response_id in ids]

    (texts, growth), web_growth = await memory_growth([web], memory_growth([worker], run_three()))
    print(
        f"5 MB outputs, three at once: worker +{growth / MB:.0f} MB, web +{web_growth / MB:.0f} MB"
    )
    assert [len(output) for output in texts] == [5 * MB] * 3
    assert growth < 280 * MB
    assert web_growth < 280 * MB


async def test_readers_that_read_nothing_cost_a_bounded_buffer(
    loaded_stack: Stack, web: Service, fake: FakeUpstream
) -> None:
    """Forty readers read nothing of 45 MB (10 000 deltas): unbounded buffers would be 1.8 GB."""
    released = asyncio.Event()
    model = fake.script(
        [text("first"), wait_for(released), text(*["x" * 700] * 10_000), finish(), usage(), done()]
    )
    response_id = await loaded_stack.api().create_background(model)

    async def complete() -> int:
        released.set()
        await _completed(loaded_stack, response_id)
        return len((await loaded_stack.api().get(response_id))["output_text"])

    with ExitStack() as readers:
        for _ in range(40):
            readers.enter_context(_unread_stream(loaded_stack, response_id))
        size, growth = await memory_growth([web], complete())
        print(f"40 readers that read nothing of 45 MB: web +{growth / MB:.0f} MB")
        assert size == 7_000_005
        assert growth < 800 * MB
        frames = await loaded_stack.api().replay(response_id)
        assert len(assert_one_stream(frames)) > 10_000
        await until(lambda: web.log.read_text().count("slow_client_disconnected") >= 40, 30)


async def test_a_hung_postgres_slows_the_upstreams(
    loaded_stack: Stack, worker: Service, fake: FakeUpstream
) -> None:
    flood = Flood()
    model = fake.script([flood.step(), finish(), usage(), done()])
    ids = [await loaded_stack.api().create_background(model) for _ in range(8)]
    await until(lambda: len(fake.requests_for(model)) == 8)
    worker.proxies.postgres.hang()
    sent_before = flood.sent
    _, growth = await memory_growth([worker], flood.stalls())
    print(
        f"8 floods, PostgreSQL hung: worker +{growth / MB:.0f} MB,"
        f" {(flood.sent - sent_before) / MB:.0f} MB read"
    )
    flood.over.set()
    worker.proxies.postgres.heal()
    assert growth < 100 * MB
    for response_id in ids:
        await _completed(loaded_stack, response_id)
    assert len(fake.requests_for(model)) == 8, "a response started again"


async def test_a_hung_redis_costs_a_bounded_buffer(
    loaded_stack: Stack, worker: Service, fake: FakeUpstream
) -> None:
    model = fake.script([text(*["x" * 1000] * 2_000), finish(), usage(), done()])

    async def run_all() -> None:
        for _ in range(4):
            for response_id in [
                await loaded_stack.api().create_background(model) for _ in range(5)
            ]:
                await _completed(loaded_stack, response_id)

    await run_all()  # grows the worker by what the responses themselves need
    worker.proxies.redis.hang()
    _, growth = await memory_growth([worker], run_all())
    worker.proxies.redis.heal()
    print(f"170 MB published while Redis hangs: worker +{growth / MB:.0f} MB")
    assert growth < 150 * MB


async def test_many_streams_cost_little_and_the_memory_is_reused(
    loaded_stack: Stack, web: Service, worker: Service, fake: FakeUpstream
) -> None:
    """Measures what a stream and its reader cost, and that the memory is used again."""
    released = asyncio.Event()
    model = fake.script(
        [text("a"), wait_for(released), text(*"bcdefghij", gap=0.1), finish(), usage(), done()]
    )

    async def run_streams() -> list[Stream]:
        async with AsyncExitStack() as open_streams:
            streams = [
                await open_streams.enter_async_context(
                    loaded_stack.api().post_stream(model, background=True)
                )
                for _ in range(STREAMS)
            ]
            await asyncio.gather(
                *(stream.until("response.output_text.delta") for stream in streams)
            )
            released.set()
            await asyncio.gather(*(stream.to_end() for stream in streams))
            return streams

    (streams, growth), web_growth = await memory_growth(
        [web], memory_growth([worker], run_streams())
    )
    print(
        f"{STREAMS} streams: worker +{growth / STREAMS / 1000:.0f} KB each,"
        f" web +{web_growth / STREAMS / 1000:.0f} KB each"
    )
    assert {stream.final["output_text"] for stream in streams} == {"abcdefghij"}
    assert all(
        [decode(frame)["sequence_number"] for frame in stream.frames]
        == list(range(len(stream.frames)))
        for stream in streams
    )
    assert growth < STREAMS * 200_000 + 20 * MB
    assert web_growth < STREAMS * 200_000 + 20 * MB


async def _completed(loaded_stack: Stack, response_id: str) -> None:
    """Waits by a query: a GET of a running response of 10 MB costs memory itself."""
    is_completed = "SELECT status = 'completed' FROM responses WHERE id = %s::uuid"
    await until(
        lambda: loaded_stack.value(is_completed, response_id.removeprefix("resp_")), 60, every=0.1
    )


def _unread_stream(loaded_stack: Stack, response_id: str) -> socket.socket:
    """A connection that requests the stream and reads nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", loaded_stack.webs[0].port))
    head = (
        f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {loaded_stack.key}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection
