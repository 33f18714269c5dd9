"""The fault matrix: PostgreSQL, Redis and the upstream fail for all processes at once."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from tests.chaos.matrix.checks import (
    assert_completes,
    assert_create_refused,
    assert_no_process_died,
    assert_readers_stayed_connected,
    assert_streams_continue,
)
from tests.chaos.matrix.web import reader
from tests.support.api import until
from tests.support.chaos.lab import PAST_THE_LEASE, Lab, Victim
from tests.support.chaos.load import OUTPUT_TEXT, Load
from tests.support.chaos.load_client import BACKGROUND
from tests.support.chaos.proxy import Proxy
from tests.support.fake_upstream import reply

postgres = Victim(
    "postgres",
    own_postgres=True,
    settings={"BACKBURNER_LEASE__DURATION": "4", "BACKBURNER_LEASE__CAUTION": "3.5"},
)
"""Its leases are longer than elsewhere: with a latency of 1 s a heartbeat takes two seconds."""
PAST_THIS_LEASE = PAST_THE_LEASE + 1
redis = reader.beside("redis")
upstream = reader.beside("upstream")


# --- PostgreSQL ---


def _postgres_proxies(lab: Lab) -> list[Proxy]:
    return [proxies.postgres for proxies in lab.stack.proxies()]


@postgres.cell("refused")
async def postgres_refuses_past_the_lease(lab: Lab) -> None:
    """It refuses connections for longer than a lease; creates in that time never run."""
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.refuse()
    load.release_second_word()
    refused = await _refused_creates(lab)
    for proxy in _postgres_proxies(lab):
        proxy.heal()
    await assert_no_process_died(lab, load)
    assert not any(map(lab.fake.requests_for, refused))


async def _refused_creates(lab: Lab) -> list[str]:
    """Sends creates that are refused, for longer than a lease; returns their models."""
    models: list[str] = []
    loop = asyncio.get_running_loop()
    started = loop.time()
    while loop.time() - started < PAST_THIS_LEASE:
        models.append(await assert_create_refused(lab))
    return models


@postgres.cell("hung")
async def postgres_hangs_past_the_lease(lab: Lab) -> None:
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.hang()
    load.release_second_word()
    await _assert_create_hangs(lab)
    for proxy in _postgres_proxies(lab):
        proxy.heal()
    await assert_no_process_died(lab, load)


async def _assert_create_hangs(lab: Lab) -> None:
    """Checks that a create gets no answer for longer than a lease."""
    create = asyncio.create_task(
        lab.stack.api().call(
            "POST", "/responses", {"model": "never", "input": "x", "background": True}
        )
    )
    _, pending = await asyncio.wait({create}, timeout=PAST_THIS_LEASE)
    assert pending
    create.cancel()
    await asyncio.wait({create})


@postgres.cell("sigstop")
async def postgres_is_frozen_past_the_lease(lab: Lab) -> None:
    load = await lab.start_load()
    main = psutil.Process(lab.postgres.pid)
    frozen = [main, *main.children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    load.release_second_word()
    try:
        await _assert_create_hangs(lab)
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    await assert_no_process_died(lab, load)


@postgres.cell("kill9")
async def postgres_crashes(lab: Lab) -> None:
    """The crash empties the journal; workers have all events since their last flush in memory."""
    load = await lab.start_load()
    load.release_second_word()
    await load.wait_for_words(2)
    await asyncio.to_thread(lab.postgres.kill)
    await asyncio.to_thread(lab.postgres.start)
    await assert_no_process_died(lab, load)


@postgres.cell("restart")
async def postgres_restarts(lab: Lab) -> None:
    load = await lab.start_load()
    await asyncio.to_thread(lab.postgres.stop)
    load.release_second_word()
    refused = await assert_create_refused(lab)
    await asyncio.to_thread(lab.postgres.start)
    await assert_no_process_died(lab, load)
    assert not lab.fake.requests_for(refused)


@postgres.latency_cells
async def postgres_is_slow(lab: Lab, seconds: float) -> None:
    """With a latency of 1 s no process can prove that another one is dead."""
    load = await lab.start_load()
    for proxy in _postgres_proxies(lab):
        proxy.latency(seconds)
    await assert_streams_continue(lab, load)
    await assert_no_process_died(lab, load)


@postgres.cell("pool-exhausted")
async def postgres_allows_no_connection(lab: Lab) -> None:
    """Open connections are ended, and new ones refused."""
    load = await lab.start_load()
    async with _no_connections(lab):
        load.release_second_word()
        refused = await assert_create_refused(lab)
    await assert_no_process_died(lab, load)
    assert not lab.fake.requests_for(refused)


@asynccontextmanager
async def _no_connections(lab: Lab) -> AsyncIterator[None]:
    """Ends the stack's connections and allows no new one.

    A real limit of connections would not apply: the tests connect as superuser.
    """
    name = urlsplit(lab.stack.dsn).path[1:]
    alter = "ALTER DATABASE {} ALLOW_CONNECTIONS "
    end_connections = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    async with await psycopg.AsyncConnection.connect(
        lab.database_server.admin_url, autocommit=True
    ) as connection:
        await connection.execute(sql.SQL(alter + "false").format(sql.Identifier(name)))
        await connection.execute(end_connections, [name])
        try:
            yield
        finally:
            await connection.execute(sql.SQL(alter + "true").format(sql.Identifier(name)))


@postgres.cell("read-only")
async def postgres_is_read_only_past_the_lease(lab: Lab) -> None:
    """It was demoted, or an operator made it read-only; creates in that time never run."""
    load = await lab.start_load()
    async with _read_only(lab):
        load.release_second_word()
        refused = await _refused_creates(lab)
    await assert_no_process_died(lab, load)
    assert not any(map(lab.fake.requests_for, refused))


@postgres.cell("read-only-briefly")
async def postgres_is_read_only_for_less_than_a_lease(lab: Lab) -> None:
    """As between the demotion of a primary and the promotion of the next."""
    load = await lab.start_load()
    async with _read_only(lab):
        load.release_second_word()
        refused = await assert_create_refused(lab)
    await load.wait_for_words(2)
    await assert_no_process_died(lab, load)
    assert not lab.fake.requests_for(refused)


def _read_only(lab: Lab) -> AbstractAsyncContextManager[None]:
    """Lets every session refuse writes with SQLSTATE 25006, as a demoted primary does."""
    return _server_setting(lab, "default_transaction_read_only", "on")


@asynccontextmanager
async def _server_setting(lab: Lab, name: str, value: str) -> AsyncIterator[None]:
    """Runs the server with this setting."""
    async with await psycopg.AsyncConnection.connect(
        lab.database_server.admin_url, autocommit=True
    ) as connection:
        await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        await connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            await connection.execute(f"ALTER SYSTEM RESET {name}".encode())
            await connection.execute("SELECT pg_reload_conf()")


@postgres.cell("standby-away")
async def synchronous_standby_is_away_past_the_lease(lab: Lab) -> None:
    """Commits wait for it, renewals of leases too, while reads are answered."""
    load = await lab.start_load()
    async with _server_setting(lab, "synchronous_standby_names", "away"):
        load.release_second_word()
        await _assert_create_hangs(lab)
    await assert_no_process_died(lab, load)


@postgres.cell("locked")
async def postgres_locks_a_table(lab: Lab) -> None:
    """A migration or a full vacuum locks `responses` for longer than a lease: pools run empty."""
    load = await lab.start_load()
    async with await psycopg.AsyncConnection.connect(lab.stack.dsn) as connection:
        await connection.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
        load.release_second_word()
        await _assert_create_hangs(lab)
        await connection.rollback()
    await assert_no_process_died(lab, load)


# --- Redis ---


@redis.latency_cells
async def redis_is_slow(lab: Lab, seconds: float) -> None:
    """With a latency of 1 s it is too slow, and the processes work without it."""
    load = await lab.start_load()
    for proxies in lab.stack.proxies():
        proxies.redis.latency(seconds)
    await _assert_works_without_redis(lab, load)


@redis.cell("refused")
async def redis_refuses(lab: Lab) -> None:
    load = await lab.start_load()
    for proxies in lab.stack.proxies():
        proxies.redis.refuse()
    await _assert_works_without_redis(lab, load)


@redis.cell("hung")
async def redis_hangs(lab: Lab) -> None:
    load = await lab.start_load()
    for proxies in lab.stack.proxies():
        proxies.redis.hang()
    await _assert_works_without_redis(lab, load)


@redis.cell("sigstop")
async def redis_is_frozen(lab: Lab) -> None:
    load = await lab.start_load()
    os.kill(lab.valkey.pid, signal.SIGSTOP)
    try:
        await _assert_works_without_redis(lab, load)
    finally:
        os.kill(lab.valkey.pid, signal.SIGCONT)


async def _assert_works_without_redis(lab: Lab, load: Load) -> None:
    """Streams continue, new responses start, and no reader has to connect again."""
    await assert_streams_continue(lab, load)
    await assert_completes(lab, load)
    assert_readers_stayed_connected(load)


@redis.cell("restart")
async def redis_comes_back_empty(lab: Lab) -> None:
    load = await lab.start_load()
    client = lab.stack.redis()
    await client.flushall()
    await client.aclose()
    await asyncio.to_thread(lab.valkey.stop)
    load.release_second_word()
    queued = await lab.stack.api().create_background(lab.fake.script(reply("queued")))
    await asyncio.to_thread(lab.valkey.start)
    assert (await lab.stack.api().wait_for_end(queued))["output_text"] == "queued"
    await assert_completes(lab, load)


@redis.cell("kill9")
async def redis_is_killed(lab: Lab) -> None:
    load = await lab.start_load()
    await asyncio.to_thread(lab.valkey.kill)
    load.release_second_word()
    await load.wait_for_words(2)
    await asyncio.to_thread(lab.valkey.start)
    await assert_completes(lab, load)


@redis.cell("pool-exhausted")
async def redis_allows_no_connection(lab: Lab) -> None:
    """Its limit of clients is reached, and the stack's connections were closed."""
    load = await lab.start_load()
    client = lab.stack.redis()
    try:
        await client.config_set("maxclients", 1)
        for kind in ("normal", "pubsub"):
            await client.client_kill_filter(_type=kind, skipme=True)
        await _assert_works_without_redis(lab, load)
    finally:
        await client.config_set("maxclients", 10_000)
        await client.aclose()


# --- the upstream ---


@upstream.latency_cells
async def upstream_is_slow(lab: Lab, seconds: float) -> None:
    for proxies in lab.stack.proxies():
        proxies.upstream.latency(seconds)
    load = await lab.start_load()
    load.release_second_word()
    await load.wait_for_words(2)
    await load.finish()
    await load.assert_outcomes()


@upstream.cell("hung")
async def upstream_hangs_past_the_lease(lab: Lab) -> None:
    """A silent upstream does not matter to the leases."""
    load = await lab.start_load()
    for proxies in lab.stack.proxies():
        proxies.upstream.hang()
    load.release_second_word()
    loop = asyncio.get_running_loop()
    started = loop.time()
    while loop.time() - started < PAST_THE_LEASE:
        await load.wait_for_words(1)
        assert all(member.deltas < 2 for member in load.members)
        await asyncio.sleep(0.2)
    for proxies in lab.stack.proxies():
        proxies.upstream.heal()
    await load.finish()
    await load.assert_outcomes()


@upstream.cell("kill9")
async def upstream_dies_in_mid_answer(lab: Lab) -> None:
    """It costs background responses the turn. Foreground ones fail and keep their output."""
    load = await lab.start_load()
    crash = lab.fault("crashed", "upstream")
    for proxies in lab.stack.proxies():
        proxies.upstream.refuse()
    in_background = [member.model for member in load.members if member.kind in BACKGROUND]
    deferred = "SELECT count(*) FROM responses WHERE model = ANY(%s) AND resume_at IS NOT NULL"

    async def all_wait() -> bool:
        return int(await lab.stack.value(deferred, in_background)) == len(in_background)

    await until(all_wait)
    for proxies in lab.stack.proxies():
        proxies.upstream.heal()
    crash.end = time.monotonic()
    await load.finish()
    for member in load.members:
        calls = len(lab.fake.requests_for(member.model))
        if member.kind in BACKGROUND:
            assert member.last_seen is not None
            shown = member.last_seen["status"], member.last_seen["output_text"], calls
            assert shown == ("completed", OUTPUT_TEXT, 2), (member.kind, shown)
        else:
            assert calls == 1
    await load.audit(lab.stack.api())
