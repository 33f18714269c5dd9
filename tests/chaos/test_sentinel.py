"""REDIS_URL names Sentinels: the processes follow the primary that they name."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.embedded.process import free_port
from cli.embedded.valkey import Valkey
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.sentinel import SentinelServer, make_replica
from tests.support.stack import Stack

pytestmark = pytest.mark.usefixtures("embedded_redis")


@pytest.fixture
async def servers(
    tmp_path: Path, private_stack: PrivateStack
) -> AsyncIterator[tuple[Stack, Valkey, SentinelServer]]:
    """A deployment that knows only Sentinels, the primary, and a Sentinel."""
    with (
        Valkey(tmp_path / "a", tmp_path / "a", port=free_port(), password="secret") as master,
        Valkey(tmp_path / "b", tmp_path / "b", port=free_port(), password="secret") as replica,
    ):
        make_replica(replica, master)
        with SentinelServer(tmp_path, master) as sentinel:
            async with private_stack(
                settings={"REDIS_URL": sentinel.url}, allowed_tracebacks=REDIS_TRACEBACKS
            ) as own_stack:
                yield own_stack, master, sentinel


async def test_processes_follow_the_primary_that_sentinel_names(
    servers: tuple[Stack, Valkey, SentinelServer], fake: FakeUpstream
) -> None:
    own_stack, master, sentinel = servers
    api = own_stack.api()
    await until(lambda: _is_redis_ok(own_stack))
    assert await _seconds_to_end(own_stack, fake) < 3, "started by a message, not by a sweep"
    released = asyncio.Event()
    model = fake.script([text("one "), wait_for(released), *reply("two")])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        await asyncio.to_thread(master.kill)
        await until(lambda: sentinel.primary_port() != master.port, 20)
        released.set()
        await stream.to_end()
    assert stream.final["output_text"] == "one two"
    await until(lambda: _is_redis_ok(own_stack), 20)
    promoted_at = time.monotonic()
    while await _seconds_to_end(own_stack, fake) > 3:
        assert time.monotonic() - promoted_at < 25, "the worker consumes no messages"


async def _is_redis_ok(own_stack: Stack) -> bool:
    return bool((await own_stack.readyz())["redis"] == "ok")


async def _seconds_to_end(own_stack: Stack, fake: FakeUpstream) -> float:
    """Seconds from a create to its end, which follows its start at once."""
    api, sent_at = own_stack.api(), time.monotonic()
    created = await api.create_background(fake.script(reply("fine")))
    assert (await api.wait_for_end(created))["output_text"] == "fine"
    return time.monotonic() - sent_at
