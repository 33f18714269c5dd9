"""The fault matrix: Postgres, Redis and the upstream, for everybody at once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from tests.chaos.matrix.web import assert_create_refused, reader
from tests.support.chaos.lab import PAST_THE_LEASE, Lab, Victim
from tests.support.chaos.load import BACKGROUND, Load
from tests.support.chaos.proxy import Proxy
from tests.support.fake_upstream import reply

postgres = Victim(
    "postgres",
    own_postgres=True,
    settings={"BACKBURNER_LEASE__DURATION": "4", "BACKBURNER_LEASE__CAUTION": "3.5"},
)
"""Leases somewhat longer than elsewhere: a second's latency makes a heartbeat last two."""
PAST_THIS_LEASE = PAST_THE_LEASE + 1
redis = reader.beside("redis")
upstream = reader.beside("upstream")


# --- Postgres ---


def _postgres_proxies(lab: Lab) -> list[Proxy]:
    return [wires.postgres for wires in lab.stack.proxies()]


async def assert_nobody_died(lab: Lab, load: Load) -> None:
    """Every response ends under its attempt, with one request to its upstream, and all processes are as they were."""
    await load.finish()
    lab.heal()
    await load.assert_outcomes()
    assert not await lab.stack.value("SELECT count(*) FROM workers WHERE ended LIKE 'reaped%%'")


@postgres.cell("refused")
async def postgres_is_away_past_the_lease(lab: Lab) -> None:
    """For longer than every lease; what it is asked to create meanwhile is refused and never runs."""
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.refuse()
    load.release_second_word()
    unheard = await _refused_creates(lab)
    for proxy in _postgres_proxies(lab):
        proxy.heal()
    await assert_nobody_died(lab, load)
    assert not any(map(lab.fake.requests_for, unheard))


async def _refused_creates(lab: Lab) -> list[str]:
    """The models of creates that were refused, one after another, for longer than a lease lasts."""
    unheard: list[str] = []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() - begun < PAST_THIS_LEASE:
        unheard.append(await assert_create_refused(lab))
    return unheard


@postgres.cell("hung")
async def postgres_says_nothing_past_the_lease(lab: Lab) -> None:
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.hang()
    load.release_second_word()
    await _assert_create_hangs(lab)
    for proxy in _postgres_proxies(lab):
        proxy.heal()
    await assert_nobody_died(lab, load)


async def _assert_create_hangs(lab: Lab) -> None:
    """A create gets no answer for longer than a lease lasts."""
    asked = asyncio.create_task(
        lab.stack.api().call(
            "POST", "/responses", {"model": "never", "input": "x", "background": True}
        )
    )
    _, pending = await asyncio.wait({asked}, timeout=PAST_THIS_LEASE)
    assert pending
    asked.cancel()
    await asyncio.wait({asked})


@postgres.cell("sigstop")
async def postgres_is_frozen_past_the_lease(lab: Lab) -> None:
    load = await lab.start_load()
    assert lab.database_server.server is not None
    main = psutil.Process(lab.database_server.server.pid)
    frozen = [main, *main.children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    load.release_second_word()
    try:
        await _assert_create_hangs(lab)
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    await assert_nobody_died(lab, load)


@postgres.cell("kill9")
async def postgres_crashes(lab: Lab) -> None:
    """It empties the journal; the workers have everything since their last flush in memory."""
    load = await lab.start_load()
    assert lab.database_server.server is not None
    load.release_second_word()
    await load.wait_for_words(2)
    await asyncio.to_thread(lab.database_server.server.kill)
    await asyncio.to_thread(lab.database_server.server.start)
    await assert_nobody_died(lab, load)


@postgres.cell("restart")
async def postgres_restarts(lab: Lab) -> None:
    load = await lab.start_load()
    assert lab.database_server.server is not None
    await asyncio.to_thread(lab.database_server.server.stop)
    load.release_second_word()
    unheard = await assert_create_refused(lab)
    await asyncio.to_thread(lab.database_server.server.start)
    await assert_nobody_died(lab, load)
    assert not lab.fake.requests_for(unheard)


@postgres.cell("latency-1ms")
async def postgres_is_at_some_distance(lab: Lab) -> None:
    await _postgres_far_away(lab, 0.001)


@postgres.cell("latency-1s")
async def postgres_is_far_away(lab: Lab) -> None:
    """Nobody can prove that anybody is dead."""
    await _postgres_far_away(lab, 1.0)


async def _postgres_far_away(lab: Lab, seconds: float) -> None:
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.latency(seconds)
    load.release_second_word()
    await load.wait_for_words(2)
    await lab.assert_works()
    await assert_nobody_died(lab, load)


@postgres.cell("pool-exhausted")
async def postgres_has_no_connection_left(lab: Lab) -> None:
    """None is given any more, and ours are ended."""
    load = await lab.start_load()
    async with _no_connection_given(lab):
        load.release_second_word()
        unheard = await assert_create_refused(lab)
    await assert_nobody_died(lab, load)
    assert not lab.fake.requests_for(unheard)


@asynccontextmanager
async def _no_connection_given(lab: Lab) -> AsyncIterator[None]:
    """Our connections are ended and no new one is given. A true lack of places does not stop the superuser that the tests are."""
    name = sql.Identifier(urlsplit(lab.stack.dsn).path[1:])
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    async with await psycopg.AsyncConnection.connect(
        lab.database_server.admin_url, autocommit=True
    ) as connection:
        await connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        await connection.execute(ours, [urlsplit(lab.stack.dsn).path[1:]])
        try:
            yield
        finally:
            await connection.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name)
            )


@postgres.cell("locked")
async def postgres_holds_a_table_back(lab: Lab) -> None:
    """A migration or a full vacuum holds `responses` for longer than a lease: statements pile up until each pool is empty."""
    load = await lab.start_load()
    async with await psycopg.AsyncConnection.connect(lab.stack.dsn) as connection:
        await connection.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
        load.release_second_word()
        await _assert_create_hangs(lab)
        await connection.rollback()
    await assert_nobody_died(lab, load)


# --- Redis ---


@redis.cell("latency-1ms")
async def redis_is_at_some_distance(lab: Lab) -> None:
    await _redis_far_away(lab, 0.001)


@redis.cell("latency-1s")
async def redis_is_far_away(lab: Lab) -> None:
    """Slower than we wait for it: left out."""
    await _redis_far_away(lab, 1.0)


async def _redis_far_away(lab: Lab, seconds: float) -> None:
    load = await lab.start_load()
    for wires in lab.stack.proxies():
        wires.redis.latency(seconds)
    await _without_redis(lab, load)


@redis.cell("refused")
async def redis_is_away(lab: Lab) -> None:
    load = await lab.start_load()
    for wires in lab.stack.proxies():
        wires.redis.refuse()
    await _without_redis(lab, load)


@redis.cell("hung")
async def redis_says_nothing(lab: Lab) -> None:
    load = await lab.start_load()
    for wires in lab.stack.proxies():
        wires.redis.hang()
    await _without_redis(lab, load)


@redis.cell("sigstop")
async def redis_is_frozen(lab: Lab) -> None:
    load = await lab.start_load()
    assert lab.stack.valkey is not None
    os.kill(lab.stack.valkey.pid, signal.SIGSTOP)
    try:
        await _without_redis(lab, load)
    finally:
        os.kill(lab.stack.valkey.pid, signal.SIGCONT)


async def _without_redis(lab: Lab, load: Load) -> None:
    """Streams go on, new work starts, and nobody has to come back."""
    load.release_second_word()
    await load.wait_for_words(2)
    await lab.assert_works()
    await load.finish()
    lab.heal()
    await load.assert_outcomes()
    assert [member.connections for member in load.members if member.frames] == [1, 1, 1]


@redis.cell("restart")
async def redis_comes_back_empty(lab: Lab) -> None:
    load = await lab.start_load()
    assert lab.stack.valkey is not None
    client = lab.stack.redis()
    await client.flushall()
    await client.aclose()
    await asyncio.to_thread(lab.stack.valkey.stop)
    load.release_second_word()
    queued = await lab.stack.api().create_background(lab.fake.script(reply("queued")))
    await asyncio.to_thread(lab.stack.valkey.start)
    assert (await lab.stack.api().wait_for_end(queued))["output_text"] == "queued"
    await load.finish()
    await load.assert_outcomes()


@redis.cell("kill9")
async def redis_is_killed(lab: Lab) -> None:
    load = await lab.start_load()
    assert lab.stack.valkey is not None
    await asyncio.to_thread(lab.stack.valkey.kill)
    load.release_second_word()
    await load.wait_for_words(2)
    await asyncio.to_thread(lab.stack.valkey.start)
    await load.finish()
    await load.assert_outcomes()


@redis.cell("pool-exhausted")
async def redis_has_no_connection_left(lab: Lab) -> None:
    """Its limit of clients is reached, and ours were put out."""
    load = await lab.start_load()
    client = lab.stack.redis()
    try:
        await client.config_set("maxclients", 1)
        for kind in ("normal", "pubsub"):
            await client.client_kill_filter(_type=kind, skipme=True)
        await _without_redis(lab, load)
    finally:
        await client.config_set("maxclients", 10_000)
        await client.aclose()


# --- the upstream ---


@upstream.cell("latency-1ms")
async def upstream_is_at_some_distance(lab: Lab) -> None:
    await _upstream_far_away(lab, 0.001)


@upstream.cell("latency-1s")
async def upstream_is_far_away(lab: Lab) -> None:
    await _upstream_far_away(lab, 1.0)


async def _upstream_far_away(lab: Lab, seconds: float) -> None:
    for wires in lab.stack.proxies():
        wires.upstream.latency(seconds)
    load = await lab.start_load()
    load.release_second_word()
    await load.wait_for_words(2)
    await load.finish()
    await load.assert_outcomes()


@upstream.cell("hung")
async def upstream_says_nothing_past_the_lease(lab: Lab) -> None:
    """Whose silence that is does not matter to the lease."""
    load = await lab.start_load()
    for wires in lab.stack.proxies():
        wires.upstream.hang()
    load.release_second_word()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() - begun < PAST_THE_LEASE:
        await load.wait_for_words(1)
        assert all(member.deltas < 2 for member in load.members)
        await asyncio.sleep(0.2)
    for wires in lab.stack.proxies():
        wires.upstream.heal()
    await load.finish()
    await load.assert_outcomes()


@upstream.cell("kill9")
async def upstream_dies_in_mid_answer(lab: Lab) -> None:
    """A turn that has begun to speak is not asked for again: its response fails and keeps what was said."""
    load = await lab.start_load()
    for wires in lab.stack.proxies():
        wires.upstream.refuse()
    await load.wait_for_end()
    for member in load.members:
        if member.kind in BACKGROUND:
            assert member.last_seen is not None
            assert member.last_seen["status"] == "failed", member.last_seen
            assert member.last_seen["error"]["code"] == "server_error"
            assert member.last_seen["output_text"] == "one "
        assert len(lab.fake.requests_for(member.model)) == 1
    await load.audit(lab.stack.api())
