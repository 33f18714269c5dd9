"""A worker that stops hands all its responses over, however slowly PostgreSQL answers."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.proxy import ProcessProxies, Proxy
from tests.support.fake_upstream import FakeUpstream, done, finish, hang, text, usage, wait_for
from tests.support.stack import Stack


@pytest.fixture
async def proxies() -> AsyncIterator[list[ProcessProxies]]:
    """Proxies that are closed at the end."""
    opened: list[ProcessProxies] = []
    yield opened
    for each in opened:
        await each.close()


async def _start_worker_behind_proxy(
    running: Stack, proxies: list[ProcessProxies], streams: int
) -> Proxy:
    """Starts a worker; returns the proxy before its PostgreSQL."""
    of_worker = ProcessProxies.before(running.dsn, running.redis_url, running.fake.base_url)
    proxies.append(of_worker)
    running.postgres_proxy_for = lambda _: of_worker.postgres
    await running.start_worker(streams=streams)
    running.postgres_proxy_for = None
    return of_worker.postgres


@pytest.mark.parametrize(
    ("responses", "latency"),
    [(100, 0.5), pytest.param(1000, 0.1, marks=[pytest.mark.long, pytest.mark.timeout(240)])],
)
async def test_a_stopping_worker_loses_no_response_although_postgres_is_slow(
    private_stack: PrivateStack,
    fake: FakeUpstream,
    proxies: list[ProcessProxies],
    responses: int,
    latency: float,
) -> None:
    """One statement for each response would take longer than the worker waits before it exits."""
    async with private_stack(workers=0) as running:
        slow_postgres = await _start_worker_behind_proxy(running, proxies, responses)
        released = asyncio.Event()
        again = [text("whole"), wait_for(released), finish(), usage(), done()]
        models = [fake.script([text("half"), hang()], again) for _ in range(responses)]
        for start in range(0, responses, 20):
            await asyncio.gather(
                *(running.api().create_background(model) for model in models[start : start + 20])
            )
        await until(lambda: all(fake.requests_for(model) for model in models), 90)
        await running.start_worker(streams=responses)
        stopping = running.workers.pop(0)
        slow_postgres.latency(latency)
        stopped_at = time.monotonic()
        stopping.request_stop()
        await until(
            lambda: all(len(fake.requests_for(model)) == 2 for model in models), 90, every=0.1
        )
        seconds = sorted(fake.requests_for(model)[1].started - stopped_at for model in models)
        print(
            f"{responses} responses run again {seconds[0]:.1f} s (first), "
            f"{seconds[responses // 2]:.1f} s (p50), {seconds[-1]:.1f} s (last) after SIGTERM; "
            "the grace period is 2 s"
        )
        await until(lambda: not stopping.running(), 20)
        assert stopping.exit_code() == 0
        assert "stop_timeout" not in stopping.tail(20_000)
        released.set()
        completed = "SELECT count(*) = %s FROM responses WHERE status = 'completed'"
        await until(lambda: running.value(completed, responses), 30)
        handed_over = "SELECT count(*) FROM attempts WHERE attempt = 1 AND outcome = 'handed_over'"
        assert await running.value(handed_over) == responses
        assert await running.value("SELECT sum(crashes) FROM responses") == 0
