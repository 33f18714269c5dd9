"""The network forgets the connections to Redis: no side is informed, and new connections work.

A firewall that empties its table of connections does this, and a machine that loses its power.
"""

import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from models.redis.client import KEEPALIVE_OPTIONS
from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Service, Stack

pytestmark = pytest.mark.usefixtures("embedded_redis")

_ENQUEUED_AGAIN_AFTER = 5
"""Seconds (`lease.enqueue_interval`) after which a sweep starts a response without its message."""
_KEEPALIVE_TIMER = "02"
_HUNDREDTHS = 100


@pytest.mark.long
async def test_a_worker_consumes_messages_again_soon_after_its_connections_were_lost(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(proxied=True) as own_stack:
        api = own_stack.api()
        assert await _seconds_to_end(api, fake) < _ENQUEUED_AGAIN_AFTER
        for process in own_stack.started:
            process.proxies.redis.lose()
        lost_at = time.monotonic()
        # Meanwhile the sweep starts what is created.
        assert await _seconds_to_end(api, fake) < 3 * _ENQUEUED_AGAIN_AFTER
        while await _seconds_to_end(api, fake) > _ENQUEUED_AGAIN_AFTER - 2:
            assert time.monotonic() - lost_at < 25, "the worker consumes no messages"
        print(f"consumed again {time.monotonic() - lost_at:.1f} s after the loss")
        assert "control_channel_unavailable" in own_stack.workers[0].tail()
        assert (await own_stack.readyz())["redis"] == "ok"


async def _seconds_to_end(api: Api, fake: FakeUpstream) -> float:
    """Seconds from a create to its end, which follows its start at once."""
    model = fake.script(reply("fine"))
    sent_at = time.monotonic()
    created = await api.create_background(model)
    assert (await api.wait_for_end(created, 60))["output_text"] == "fine"
    return time.monotonic() - sent_at


@pytest.mark.skipif(sys.platform != "linux", reason="the system lists no timers of connections")
async def test_every_connection_to_redis_is_kept_alive_by_tcp(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack() as own_stack:
        assert await _seconds_to_end(own_stack.api(), fake) < _ENQUEUED_AGAIN_AFTER
        for process in own_stack.started:
            await until(partial(_are_all_kept_alive, own_stack, process))
    assert len(KEEPALIVE_OPTIONS) == 4


def _are_all_kept_alive(own_stack: Stack, process: Service) -> bool:
    """Whether the system sends a keepalive on each of the process's connections to Redis within
    5 s."""
    redis_port = urlsplit(own_stack.redis_url).port
    ports = {
        connection.laddr.port
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.raddr and connection.raddr.port == redis_port
    }
    timers = _timers()
    return bool(ports) and all(timers.get((port, redis_port), False) for port in ports)


def _timers() -> dict[tuple[int, int | None], bool]:
    """By local and remote port: whether the next timer of the connection is a keepalive within 5 s.

    Connections to different servers may have the same local port.
    """
    kept_alive: dict[tuple[int, int | None], bool] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        kind, _, hundredths = timer.partition(":")
        is_kept_alive = kind == _KEEPALIVE_TIMER and int(hundredths, 16) <= 5 * _HUNDREDTHS
        ports = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
        kept_alive[ports] = is_kept_alive
    return kept_alive
