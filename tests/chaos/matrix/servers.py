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

from tests.chaos.matrix.web import reader, refused
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


def _ways(lab: Lab) -> list[Proxy]:
    return [wires.postgres for wires in lab.stack.wires()]


async def nobody_died(lab: Lab, load: Load) -> None:
    """Every response ends under its attempt, with one request to its upstream, and all processes are as they were."""
    await load.finish()
    lab.heal()
    await load.judge()
    assert not await lab.stack.value("SELECT count(*) FROM workers WHERE ended LIKE 'reaped%%'")


@postgres.cell("refused")
async def postgres_is_away_past_the_lease(lab: Lab) -> None:
    """For longer than every lease; what it is asked to create meanwhile is refused and never runs."""
    load = await lab.load()
    for proxy in _ways(lab):
        proxy.refuse()
    load.go_on()
    unheard = await _refused_past_the_lease(lab)
    for proxy in _ways(lab):
        proxy.heal()
    await nobody_died(lab, load)
    assert not any(map(lab.fake.asked, unheard))


async def _refused_past_the_lease(lab: Lab) -> list[str]:
    """The models of creates that were refused, one after another, for longer than a lease lasts."""
    unheard: list[str] = []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() - begun < PAST_THIS_LEASE:
        unheard.append(await refused(lab))
    return unheard


@postgres.cell("hung")
async def postgres_says_nothing_past_the_lease(lab: Lab) -> None:
    load = await lab.load()
    for proxy in _ways(lab):
        proxy.hang()
    load.go_on()
    await _silence_past_the_lease(lab)
    for proxy in _ways(lab):
        proxy.heal()
    await nobody_died(lab, load)


async def _silence_past_the_lease(lab: Lab) -> None:
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
    load = await lab.load()
    assert lab.servers.server is not None
    main = psutil.Process(lab.servers.server.pid)
    frozen = [main, *main.children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    load.go_on()
    try:
        await _silence_past_the_lease(lab)
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    await nobody_died(lab, load)


@postgres.cell("kill9")
async def postgres_crashes(lab: Lab) -> None:
    """It empties the journal; the workers have everything since their last flush in memory."""
    load = await lab.load()
    assert lab.servers.server is not None
    load.go_on()
    await load.heard(2)
    await asyncio.to_thread(lab.servers.server.kill)
    await asyncio.to_thread(lab.servers.server.start)
    await nobody_died(lab, load)


@postgres.cell("restart")
async def postgres_restarts(lab: Lab) -> None:
    load = await lab.load()
    assert lab.servers.server is not None
    await asyncio.to_thread(lab.servers.server.stop)
    load.go_on()
    unheard = await refused(lab)
    await asyncio.to_thread(lab.servers.server.start)
    await nobody_died(lab, load)
    assert not lab.fake.asked(unheard)


@postgres.cell("latency-1ms")
async def postgres_is_at_some_distance(lab: Lab) -> None:
    await _postgres_far_away(lab, 0.001)


@postgres.cell("latency-1s")
async def postgres_is_far_away(lab: Lab) -> None:
    """Nobody can prove that anybody is dead."""
    await _postgres_far_away(lab, 1.0)


async def _postgres_far_away(lab: Lab, seconds: float) -> None:
    load = await lab.load()
    for proxy in _ways(lab):
        proxy.latency(seconds)
    load.go_on()
    await load.heard(2)
    await lab.works()
    await nobody_died(lab, load)


@postgres.cell("pool-exhausted")
async def postgres_has_no_connection_left(lab: Lab) -> None:
    """None is given any more, and ours are ended."""
    load = await lab.load()
    async with _no_connection_given(lab):
        load.go_on()
        unheard = await refused(lab)
    await nobody_died(lab, load)
    assert not lab.fake.asked(unheard)


@asynccontextmanager
async def _no_connection_given(lab: Lab) -> AsyncIterator[None]:
    """Our connections are ended and no new one is given. A true lack of places does not stop the superuser that the tests are."""
    name = sql.Identifier(urlsplit(lab.stack.dsn).path[1:])
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    async with await psycopg.AsyncConnection.connect(
        lab.servers.admin_url, autocommit=True
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
    load = await lab.load()
    async with await psycopg.AsyncConnection.connect(lab.stack.dsn) as connection:
        await connection.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
        load.go_on()
        await _silence_past_the_lease(lab)
        await connection.rollback()
    await nobody_died(lab, load)


# --- Redis ---


@redis.cell("latency-1ms")
async def redis_is_at_some_distance(lab: Lab) -> None:
    await _redis_far_away(lab, 0.001)


@redis.cell("latency-1s")
async def redis_is_far_away(lab: Lab) -> None:
    """Slower than we wait for it: left out."""
    await _redis_far_away(lab, 1.0)


async def _redis_far_away(lab: Lab, seconds: float) -> None:
    load = await lab.load()
    for wires in lab.stack.wires():
        wires.redis.latency(seconds)
    await _without_redis(lab, load)


@redis.cell("refused")
async def redis_is_away(lab: Lab) -> None:
    load = await lab.load()
    for wires in lab.stack.wires():
        wires.redis.refuse()
    await _without_redis(lab, load)


@redis.cell("hung")
async def redis_says_nothing(lab: Lab) -> None:
    load = await lab.load()
    for wires in lab.stack.wires():
        wires.redis.hang()
    await _without_redis(lab, load)


@redis.cell("sigstop")
async def redis_is_frozen(lab: Lab) -> None:
    load = await lab.load()
    assert lab.stack.valkey is not None
    os.kill(lab.stack.valkey.pid, signal.SIGSTOP)
    try:
        await _without_redis(lab, load)
    finally:
        os.kill(lab.stack.valkey.pid, signal.SIGCONT)


async def _without_redis(lab: Lab, load: Load) -> None:
    """Streams go on, new work starts, and nobody has to come back."""
    load.go_on()
    await load.heard(2)
    await lab.works()
    await load.finish()
    lab.heal()
    await load.judge()
    assert [member.connections for member in load.members if member.frames] == [1, 1, 1]


@redis.cell("restart")
async def redis_comes_back_empty(lab: Lab) -> None:
    load = await lab.load()
    assert lab.stack.valkey is not None
    client = lab.stack.redis()
    await client.flushall()
    await client.aclose()
    await asyncio.to_thread(lab.stack.valkey.stop)
    load.go_on()
    queued = await lab.stack.api().background(lab.fake.script(reply("queued")))
    await asyncio.to_thread(lab.stack.valkey.start)
    assert (await lab.stack.api().ended(queued))["output_text"] == "queued"
    await load.finish()
    await load.judge()


@redis.cell("kill9")
async def redis_is_killed(lab: Lab) -> None:
    load = await lab.load()
    assert lab.stack.valkey is not None
    await asyncio.to_thread(lab.stack.valkey.kill)
    load.go_on()
    await load.heard(2)
    await asyncio.to_thread(lab.stack.valkey.start)
    await load.finish()
    await load.judge()


@redis.cell("pool-exhausted")
async def redis_has_no_connection_left(lab: Lab) -> None:
    """Its limit of clients is reached, and ours were put out."""
    load = await lab.load()
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
    for wires in lab.stack.wires():
        wires.upstream.latency(seconds)
    load = await lab.load()
    load.go_on()
    await load.heard(2)
    await load.finish()
    await load.judge()


@upstream.cell("hung")
async def upstream_says_nothing_past_the_lease(lab: Lab) -> None:
    """Whose silence that is does not matter to the lease."""
    load = await lab.load()
    for wires in lab.stack.wires():
        wires.upstream.hang()
    load.go_on()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() - begun < PAST_THE_LEASE:
        await load.heard(1)
        assert all(member.deltas < 2 for member in load.members)
        await asyncio.sleep(0.2)
    for wires in lab.stack.wires():
        wires.upstream.heal()
    await load.finish()
    await load.judge()


@upstream.cell("kill9")
async def upstream_dies_in_mid_answer(lab: Lab) -> None:
    """A turn that has begun to speak is not asked for again: its response fails and keeps what was said."""
    load = await lab.load()
    for wires in lab.stack.wires():
        wires.upstream.refuse()
    await load.ended()
    for member in load.members:
        if member.kind in BACKGROUND:
            assert member.told is not None
            assert member.told["status"] == "failed", member.told
            assert member.told["error"]["code"] == "server_error"
            assert member.told["output_text"] == "one "
        assert len(lab.fake.asked(member.model)) == 1
    await load.audit(lab.stack.api())
