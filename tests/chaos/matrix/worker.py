"""The fault matrix: a worker, and one of several sweepers.

A worker is stopped where it hurts without a hook in it: the proxy before its Postgres keeps the answer to a statement, and while
that is unheard the process is frozen or killed.
"""

from collections.abc import Iterable

from models.db.queries import claim, leases, run
from tests.support.api import decode, until
from tests.support.chaos.fragments import fragment
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.load import DELTA, Load, LoadKind
from tests.support.chaos.proxy import HeldAnswer
from tests.support.fake_upstream import reply
from tests.support.stack import Service

worker = Victim("worker", webs=1, workers=3)
sweeper = Victim("sweeper", webs=1, workers=3, settings={"BACKBURNER_WORKER__POOL_SIZE": "1"})

JOURNAL = fragment(run.JOURNAL, "INSERT INTO journal")
RENEW = fragment(leases.RENEW, "UPDATE workers SET expires_at")
LOCK = fragment(claim.LOCK_ORPHAN, "IS NOT NULL AS started")
"""Of the statement that locks a response in the transaction that claims it from a dead worker."""
REAP_LOCK = fragment(leases.REAP_LOCK, "NOT dead AND expires_at =")
EXPIRED = fragment(leases.EXPIRED_LEASES, "expires_at < clock_timestamp() ORDER BY id")
CLAIM_FRESH = fragment(claim.CLAIM_FRESH, "r.worker IS NULL AND r.attempt = 0")


class WorkerLoad:
    """The workers of a load: who runs what, and whose run it was that broke."""

    def __init__(self, lab: Lab, load: Load, owners: dict[LoadKind, Service]) -> None:
        self.lab = lab
        self.load = load
        self.owners = owners

    @classmethod
    async def of(cls, lab: Lab) -> "WorkerLoad":
        """A load that runs, and its workers."""
        load = await lab.start_load()
        return cls(lab, load, load.owners())

    @property
    def victim(self) -> Service:
        """The worker that runs the streamed response."""
        return self.owners[LoadKind.STREAMED]

    @property
    def others(self) -> list[Service]:
        """Who else is there."""
        return [process for process in self.lab.stack.workers if process is not self.victim]

    def runs_of(self, owner: Service) -> list[LoadKind]:
        """What this worker ran when it all began."""
        return [kind for kind, found in self.owners.items() if found is owner]

    def attempts(self, *dead: Service) -> dict[LoadKind, int]:
        """How often each response was begun if these workers died once."""
        return {kind: 2 if owner in dead else 1 for kind, owner in self.owners.items()}

    async def assert_ends(self, *dead: Service) -> None:
        """Everything ends, and nothing but what the dead ran was begun again."""
        await self.load.finish()
        await self.load.assert_outcomes(attempts=self.attempts(*dead))


async def _first_held(held: dict[Service, HeldAnswer]) -> Service:
    """Whose snare caught first; the others' let everything pass."""
    await until(lambda: any(snare.answered.is_set() for snare in held.values()), 20)
    victim = next(process for process, snare in held.items() if snare.answered.is_set())
    for process, snare in held.items():
        if process is not victim:
            snare.release()
    return victim


# --- worker ---


@worker.cell("kill9-unpublished")
async def dies_between_journal_and_publish(lab: Lab) -> None:
    """What was stored and never shown is shown by the next owner."""
    crew = await WorkerLoad.of(lab)
    snare = crew.victim.proxies.postgres.hold_answer(JOURNAL)
    crew.load.release_second_word()
    await snare.answered.wait()
    lab.kill(crew.victim)
    await crew.assert_ends(crew.victim)
    assert 2 in [
        _second_word_count(crew.load, kind)
        for kind, owner in crew.owners.items()
        if owner is crew.victim
    ]


def _second_word_count(load: Load, kind: LoadKind) -> int:
    """How often a reader was told the second word: once by each worker, if the first one's was stored."""
    deltas = [
        event["delta"] for event in map(decode, load.of(kind).frames) if event["type"] == DELTA
    ]
    return deltas.count("two ")


@worker.cell("sigstop-unpublished")
async def stalls_between_journal_and_publish(lab: Lab) -> None:
    """Past its lease another worker goes on; what the first one publishes when it wakes up changes nothing."""
    crew = await WorkerLoad.of(lab)
    snare = crew.victim.proxies.postgres.hold_answer(JOURNAL)
    crew.load.release_second_word()
    await snare.answered.wait()
    lab.freeze(crew.victim)
    snare.release()
    await lab.wait_until_reaped(crew.victim)
    await crew.load.wait_for_words(3, crew.runs_of(crew.victim))
    lab.thaw(crew.victim)
    await lab.wait_until_exited(crew.victim)
    await crew.assert_ends(crew.victim)


@worker.cell("sigstop-before-use")
async def stalls_between_heartbeat_and_use(lab: Lab) -> None:
    """It wakes up with a renewal in its hand that was worth something when it was given."""
    crew = await WorkerLoad.of(lab)
    snare = crew.victim.proxies.postgres.hold_answer(RENEW)
    await snare.answered.wait()
    lab.freeze(crew.victim)
    await lab.wait_until_reaped(crew.victim)
    snare.release()
    crew.load.release_second_word()
    lab.thaw(crew.victim)
    await lab.wait_until_exited(crew.victim)
    await crew.assert_ends(crew.victim)


@worker.cell("sigstop-in-transaction")
async def stalls_inside_a_transaction(lab: Lab) -> None:
    """While it takes a dead worker's response over: it holds that row's lock, and its own."""
    load = await lab.start_load([LoadKind.STREAMED])
    crew = WorkerLoad(lab, load, load.owners())
    dead = crew.victim
    snares = {process: process.proxies.postgres.hold_answer(LOCK) for process in crew.others}
    lab.kill(dead)
    later = await lab.start_load([LoadKind.POLLED, LoadKind.CHAINED, LoadKind.WAITING])
    owners = later.owners()
    stalled = await _first_held(snares)
    lab.freeze(stalled)
    await lab.wait_until_reaped(stalled)
    await load.wait_for_words(2)
    lab.thaw(stalled)
    snares[stalled].release()
    await lab.wait_until_exited(stalled)
    await load.finish()
    await load.assert_outcomes(attempts=2)
    await later.finish()
    await later.assert_outcomes(
        attempts={kind: 2 if owner is stalled else 1 for kind, owner in owners.items()}
    )


@worker.cell("refused")
async def loses_its_postgres_for_a_moment(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.proxies.postgres.refuse()
    crew.load.release_second_word()
    await until(
        lambda: all(
            words in crew.victim.tail(10**6)
            for words in ("journal_database_unavailable", "heartbeat_unreachable")
        )
    )
    await _while_others_work(lab, crew.others)
    crew.victim.proxies.postgres.heal()
    await crew.load.finish()
    if await lab.is_dead(crew.victim):  # on a slow machine the moment was longer than the lease
        await lab.wait_until_exited(crew.victim)
        await crew.assert_ends(crew.victim)
    else:
        await crew.assert_ends()


@worker.cell("refused-past-the-lease")
async def loses_its_postgres_for_longer(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.proxies.postgres.refuse()
    await _replaced_while_away(lab, crew)


@worker.cell("hung-past-the-lease")
async def hears_nothing_from_its_postgres(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.proxies.postgres.hang()
    await _replaced_while_away(lab, crew)


async def _replaced_while_away(lab: Lab, worker_load: WorkerLoad) -> None:
    worker_load.load.release_second_word()
    await lab.wait_until_reaped(worker_load.victim)
    await worker_load.load.wait_for_words(2)
    worker_load.victim.proxies.postgres.heal()
    await lab.wait_until_exited(worker_load.victim)
    await worker_load.assert_ends(worker_load.victim)


async def _while_others_work(lab: Lab, others: Iterable[Service]) -> None:
    """Something happens elsewhere meanwhile."""
    answer = await lab.stack.api().create(lab.fake.script(reply("elsewhere")))
    assert answer["output_text"] == "elsewhere"
    assert all(process.running() for process in others)


@worker.cell("latency-1ms")
async def has_servers_at_some_distance(lab: Lab) -> None:
    await _far_away(lab, 0.001)


@worker.cell("latency-1s")
async def has_servers_far_away(lab: Lab) -> None:
    await _far_away(lab, 1.0)


async def _far_away(lab: Lab, seconds: float) -> None:
    crew = await WorkerLoad.of(lab)
    for proxy in (crew.victim.proxies.postgres, crew.victim.proxies.redis):
        proxy.latency(seconds)
    crew.load.release_second_word()
    await crew.load.wait_for_words(2)
    await crew.assert_ends()


@worker.cell("pool-exhausted")
async def has_all_its_connections_stuck(lab: Lab) -> None:
    """Claims that went through and whose answers nobody hears: they run when those come, once."""
    crew = await WorkerLoad.of(lab)
    snares = [
        process.proxies.postgres.hold_answer(CLAIM_FRESH)
        for process in lab.stack.workers
        for _ in range(8)
    ]
    waiting = [
        await lab.stack.api().create_background(lab.fake.script(reply("late"))) for _ in range(24)
    ]
    await until(lambda: sum(snare.answered.is_set() for snare in snares) >= 8)
    crew.load.release_second_word()
    await crew.load.wait_for_words(2)
    for snare in snares:
        snare.release()
    for response_id in waiting:
        assert (await lab.stack.api().wait_for_end(response_id))["output_text"] == "late"
    await crew.assert_ends()


@worker.cell("redis-refused")
async def loses_its_redis(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    crew.victim.proxies.redis.refuse()
    await _without_redis(lab, crew)


@worker.cell("redis-hung")
async def hears_nothing_from_its_redis(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    crew.victim.proxies.redis.hang()
    await _without_redis(lab, crew)


async def _without_redis(lab: Lab, worker_load: WorkerLoad) -> None:
    """Nobody hears it publish, and everybody is told: by the logs."""
    worker_load.load.release_second_word()
    await worker_load.load.wait_for_words(2)
    await _while_others_work(lab, worker_load.others)
    worker_load.victim.proxies.redis.heal()
    await worker_load.assert_ends()


# --- one of several sweepers ---


async def _reaping(lab: Lab) -> tuple[WorkerLoad, Service, HeldAnswer]:
    """A worker has died, and the first sweeper that is about to declare it dead has its row locked: that one, with its snare."""
    crew = await WorkerLoad.of(lab)
    snares = {process: process.proxies.postgres.hold_answer(REAP_LOCK) for process in crew.others}
    lab.kill(crew.victim)
    reaper = await _first_held(snares)
    return crew, reaper, snares[reaper]


@sweeper.cell("kill9")
async def dies_while_it_reaps(lab: Lab) -> None:
    crew, reaper, _ = await _reaping(lab)
    lab.kill(reaper)
    await crew.assert_ends(crew.victim, reaper)


@sweeper.cell("sigstop")
async def stalls_while_it_reaps(lab: Lab) -> None:
    """It holds the lock of the one it reaps. Postgres ends such a session, another sweeper reaps both."""
    crew, reaper, snare = await _reaping(lab)
    lab.freeze(reaper)
    await lab.wait_until_reaped(crew.victim)
    await lab.wait_until_reaped(reaper)
    snare.release()
    lab.thaw(reaper)
    await lab.wait_until_exited(reaper)
    await crew.assert_ends(crew.victim, reaper)


@sweeper.cell("sigterm")
async def is_stopped_while_it_reaps(lab: Lab) -> None:
    """Its own responses are handed over: begun again, and no death."""
    crew, reaper, snare = await _reaping(lab)
    lab.fault("stopped", reaper)
    reaper.request_stop()
    snare.release()
    lab.stack.forget(reaper)
    await until(lambda: not reaper.running(), 20)
    assert reaper.exit_code() == 0
    await crew.load.finish()
    await crew.load.assert_outcomes(
        attempts=crew.attempts(crew.victim, reaper), handed_over=crew.runs_of(reaper)
    )


@sweeper.cell("latency-1s")
async def sees_everything_late(lab: Lab) -> None:
    """An answer that took so long proves nothing: it reaps nobody, the other one does."""
    crew = await WorkerLoad.of(lab)
    blinded, seeing = crew.others
    blinded.proxies.postgres.latency(1.2)
    await _assert_reaped_by(lab, crew, seeing)
    blinded.proxies.postgres.heal()
    await crew.assert_ends(crew.victim)


@sweeper.cell("pool-exhausted")
async def has_no_connection_to_sweep_with(lab: Lab) -> None:
    """Its only one is stuck in a sweep whose answer does not come."""
    crew = await WorkerLoad.of(lab)
    blinded, seeing = crew.others
    snare = blinded.proxies.postgres.hold_answer(EXPIRED)
    await snare.answered.wait()
    await _assert_reaped_by(lab, crew, seeing)
    snare.release()
    await crew.assert_ends(crew.victim)


@sweeper.cell("refused")
async def sees_nothing(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    blinded, seeing = crew.others
    lab.fault("parted", blinded)
    blinded.proxies.postgres.refuse()
    await _both_replaced(lab, crew, blinded, seeing)


@sweeper.cell("hung")
async def waits_for_what_it_would_see(lab: Lab) -> None:
    crew = await WorkerLoad.of(lab)
    blinded, seeing = crew.others
    lab.fault("parted", blinded)
    blinded.proxies.postgres.hang()
    await _both_replaced(lab, crew, blinded, seeing)


async def _both_replaced(
    lab: Lab, worker_load: WorkerLoad, cut_off: Service, connected: Service
) -> None:
    await _assert_reaped_by(lab, worker_load, connected)
    await lab.wait_until_reaped(cut_off)
    cut_off.proxies.postgres.heal()
    await lab.wait_until_exited(cut_off)
    await worker_load.assert_ends(worker_load.victim, cut_off)


async def _assert_reaped_by(lab: Lab, worker_load: WorkerLoad, sweeper_process: Service) -> None:
    """A worker dies, and it is this sweeper that notices."""
    lab.kill(worker_load.victim)
    await lab.wait_until_reaped(worker_load.victim)
    assert await lab.reaper_of(worker_load.victim) == sweeper_process.pid
