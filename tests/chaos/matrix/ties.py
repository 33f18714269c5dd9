"""The fault matrix: deaths that are noticed by their connection, and ends of connections that are
no deaths. With the default leases, because their times are the promise (I2)."""

import asyncio
import time

from tests.chaos.matrix.checks import (
    COUNT_TIES,
    TIES,
    assert_completes,
    has_ties,
    wait_until_tied,
)
from tests.chaos.matrix.worker import WorkerLoad
from tests.support.api import until
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.load import Load
from tests.support.chaos.load_client import BACKGROUND, LoadKind, Member

tie = Victim("tie", own_postgres=True, default_leases=True, workers=3)

RECOVERY_LIMIT = 6
"""Seconds within which responses run again or are ended after a kill -9 (I2)."""
END_TIES = f"SELECT count(pg_terminate_backend(l.pid)) {TIES}"
END_ALL_SESSIONS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def _pass(seconds: float) -> None:
    """For how long a fault lasts."""
    begun = time.monotonic()
    await until(lambda: time.monotonic() - begun > seconds, seconds + 5)


async def _assert_all_live(lab: Lab, load: Load) -> None:
    """Checks that no process was declared dead, and that each response has its first attempt."""
    load.release_second_word()
    await wait_until_tied(lab)
    for process in [*lab.stack.webs, *lab.stack.workers]:
        assert not await lab.is_dead(process), process.name
    await assert_completes(lab, load)


# --- deaths ---


@tie.cell("killed-worker")
async def responses_of_a_killed_worker_run_again_in_time(lab: Lab) -> None:
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.kill(worker_load.victim)
    async with asyncio.timeout(RECOVERY_LIMIT):
        await worker_load.load.wait_for_words(2, worker_load.runs_of(worker_load.victim))
    await worker_load.assert_ends(worker_load.victim)


@tie.cell("killed-web")
async def responses_of_a_killed_web_process_end_in_time(lab: Lab) -> None:
    await wait_until_tied(lab)
    load = await lab.start_load()
    cancelled = [LoadKind.WAITING]
    lab.kill(lab.stack.webs[0])
    async with asyncio.timeout(RECOVERY_LIMIT):
        await load.wait_until_upstream_closed(cancelled)
    await load.finish()
    await load.assert_outcomes(cancelled=cancelled)


@tie.cell("killed-machine")
async def a_web_process_and_a_worker_are_killed_at_once(lab: Lab) -> None:
    await wait_until_tied(lab)
    waiting = await lab.start_load([LoadKind.WAITING], lab.stack.api(0))
    load = await lab.start_load(BACKGROUND, lab.stack.api(1))
    worker_load = WorkerLoad(lab, load, load.owners())
    lab.kill(lab.stack.webs[0])
    lab.kill(worker_load.victim)
    async with asyncio.timeout(RECOVERY_LIMIT):
        await load.wait_for_words(2, worker_load.runs_of(worker_load.victim))
        await waiting.wait_until_upstream_closed([LoadKind.WAITING])
        await until(lambda: _is_cancelled(lab, waiting.of(LoadKind.WAITING)))
    await worker_load.assert_ends(worker_load.victim)
    await waiting.wait_for_end()


@tie.cell("killed-workers")
async def all_workers_are_killed_at_once(lab: Lab) -> None:
    """A web process declares them dead: workers that start need not wait until they may."""
    await wait_until_tied(lab)
    load = await lab.start_load(BACKGROUND)
    workers = list(lab.stack.workers)
    for worker in workers:
        lab.kill(worker)
    async with asyncio.timeout(RECOVERY_LIMIT):
        for worker in workers:
            await lab.wait_until_reaped(worker)
    assert await lab.reaper_of(workers[0]) in {web.pid for web in lab.stack.webs}
    for _ in workers:
        await lab.stack.start_worker()
    await load.finish()
    await load.assert_outcomes(attempts=dict.fromkeys(BACKGROUND, 2))


async def _is_cancelled(lab: Lab, member: Member) -> bool:
    question = "SELECT status FROM responses WHERE model = %s"
    return bool(await lab.stack.value(question, member.model) == "cancelled")


# --- no deaths ---


@tie.cell("sessions-ended")
async def all_sessions_end_three_times(lab: Lab) -> None:
    await wait_until_tied(lab)
    load = await lab.start_load()
    for _ in range(3):
        await lab.stack.value(END_ALL_SESSIONS)
        await until(lambda: has_ties(lab, COUNT_TIES), 10)
    await _assert_all_live(lab, load)


@tie.cell("ties-ended")
async def all_ties_end_three_times(lab: Lab) -> None:
    await wait_until_tied(lab)
    load = await lab.start_load()
    for _ in range(3):
        await lab.stack.value(END_TIES)
        await until(lambda: has_ties(lab, COUNT_TIES), 10)
    await _assert_all_live(lab, load)


@tie.cell("cut")
async def one_worker_loses_all_connections(lab: Lab) -> None:
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.cut()
    await _assert_all_live(lab, worker_load.load)


@tie.cell("refused-4s")
async def one_worker_is_refused_for_four_seconds(lab: Lab) -> None:
    """Its subscription in Redis shows that it lives."""
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.refuse()
    await _pass(4)
    worker_load.victim.proxies.postgres.heal()
    await _assert_all_live(lab, worker_load.load)


@tie.cell("sigstop-6s")
async def one_worker_is_frozen_for_six_seconds(lab: Lab) -> None:
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.freeze(worker_load.victim)
    await _pass(6)
    lab.thaw(worker_load.victim)
    await _assert_all_live(lab, worker_load.load)


@tie.cell("hung-5s")
async def the_network_of_one_worker_hangs_for_five_seconds(lab: Lab) -> None:
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.hang()
    await _pass(5)
    worker_load.victim.proxies.postgres.heal()
    await _assert_all_live(lab, worker_load.load)


@tie.cell("postgres-kill9")
async def postgres_crashes(lab: Lab) -> None:
    await wait_until_tied(lab)
    load = await lab.start_load()
    await asyncio.to_thread(lab.postgres.kill)
    await asyncio.to_thread(lab.postgres.start)
    await _assert_all_live(lab, load)


@tie.cell("postgres-away-4s")
async def postgres_is_away_for_four_seconds(lab: Lab) -> None:
    await wait_until_tied(lab)
    load = await lab.start_load()
    await asyncio.to_thread(lab.postgres.stop)
    await _pass(4)
    await asyncio.to_thread(lab.postgres.start)
    await _assert_all_live(lab, load)
