"""The fault matrix: a worker, and one of several sweepers.

A worker is stopped at an exact point without a hook in its code: the proxy before its PostgreSQL
holds the reply to a statement, and then the process is frozen or killed.
"""

import itertools
from collections.abc import Iterable

from models.db.queries import claim, leases, run, sweep
from tests.chaos.matrix.checks import wait_until_tied
from tests.support.api import decode, until
from tests.support.chaos.fragments import fragment
from tests.support.chaos.interception import HeldAnswer
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.load import Load
from tests.support.chaos.load_client import DELTA, LoadKind
from tests.support.fake_upstream import reply
from tests.support.stack import Service

POOL_SIZE = 4
"""As many connections as a worker uses for claims at a time."""
worker = Victim(
    "worker", webs=1, workers=3, settings={"BACKBURNER_WORKER__POOL_SIZE": str(POOL_SIZE)}
)
sweeper = Victim("sweeper", webs=1, workers=3, settings={"BACKBURNER_WORKER__POOL_SIZE": "1"})

JOURNAL = fragment(run.JOURNAL, "INSERT INTO journal")
RENEW = fragment(leases.RENEW, "UPDATE workers SET expires_at")
LOCK = fragment(claim.LOCK_ORPHANS, "IS NOT NULL AS started")
"""Part of the statement that locks a response before its takeover, inside the transaction."""
REAP_LOCK = fragment(leases.REAP_LOCK_UNTIED, "NOT dead AND expires_at =")
ORPHANS = fragment(sweep.ORPHANS, "IS NOT NULL OR r.requeue_requested_at IS NOT NULL")
CLAIM_NEW = fragment(claim.CLAIM_UNOWNED_TOGETHER, "r.worker IS NULL AND r.crashes = 0")


class WorkerLoad:
    """A load and the workers that run it."""

    def __init__(self, lab: Lab, load: Load, owners: dict[LoadKind, Service]) -> None:
        self.lab = lab
        self.load = load
        self.owners = owners

    @classmethod
    async def of(cls, lab: Lab) -> "WorkerLoad":
        """Starts a load and finds its workers."""
        load = await lab.start_load()
        return cls(lab, load, load.owners())

    @property
    def victim(self) -> Service:
        """The worker that runs the streamed response."""
        return self.owners[LoadKind.STREAMED]

    @property
    def others(self) -> list[Service]:
        """The other workers."""
        return [process for process in self.lab.stack.workers if process is not self.victim]

    def runs_of(self, owner: Service) -> list[LoadKind]:
        """The members that this worker ran when the load started."""
        return [kind for kind, process in self.owners.items() if process is owner]

    def attempts(self, *dead: Service) -> dict[LoadKind, int]:
        """The number of attempts of each member if these workers died once."""
        return {kind: 2 if owner in dead else 1 for kind, owner in self.owners.items()}

    async def assert_ends(self, *dead: Service) -> None:
        """Checks that all responses complete, with a second attempt only for those of the dead."""
        await self.load.finish()
        await self.load.assert_outcomes(attempts=self.attempts(*dead))


async def _first_held(held_answers: dict[Service, HeldAnswer]) -> Service:
    """Waits for the first worker whose reply is held; releases those of the others."""
    await until(lambda: any(answer.answered.is_set() for answer in held_answers.values()), 20)
    victim = next(process for process, answer in held_answers.items() if answer.answered.is_set())
    for process, answer in held_answers.items():
        if process is not victim:
            answer.release()
    return victim


# --- worker ---


@worker.cell("kill9-unpublished")
async def is_killed_between_journal_and_publish(lab: Lab) -> None:
    """The next owner publishes what was stored and not published."""
    worker_load = await WorkerLoad.of(lab)
    held = worker_load.victim.proxies.postgres.hold_answer(JOURNAL)
    worker_load.load.release_second_word()
    await held.answered.wait()
    lab.kill(worker_load.victim)
    await worker_load.assert_ends(worker_load.victim)
    assert 2 in [
        _second_word_count(worker_load.load, kind)
        for kind, owner in worker_load.owners.items()
        if owner is worker_load.victim
    ]


def _second_word_count(load: Load, kind: LoadKind) -> int:
    """How often a reader got the second word: twice if the first worker's was stored."""
    deltas = [
        event["delta"] for event in map(decode, load.of(kind).frames) if event["type"] == DELTA
    ]
    return deltas.count("two ")


@worker.cell("sigstop-unpublished")
async def is_frozen_between_journal_and_publish(lab: Lab) -> None:
    """Another worker continues; what the first one publishes after it wakes up changes nothing."""
    worker_load = await WorkerLoad.of(lab)
    held = worker_load.victim.proxies.postgres.hold_answer(JOURNAL)
    worker_load.load.release_second_word()
    await held.answered.wait()
    lab.freeze(worker_load.victim)
    held.release()
    await lab.wait_until_reaped(worker_load.victim)
    await worker_load.load.wait_for_words(3, worker_load.runs_of(worker_load.victim))
    lab.thaw(worker_load.victim)
    await lab.wait_until_exited(worker_load.victim)
    await worker_load.assert_ends(worker_load.victim)


@worker.cell("sigstop-before-use")
async def is_frozen_between_renewal_and_use(lab: Lab) -> None:
    """It wakes up with the reply to a renewal of a lease that has expired since."""
    worker_load = await WorkerLoad.of(lab)
    held = worker_load.victim.proxies.postgres.hold_answer(RENEW)
    await held.answered.wait()
    lab.freeze(worker_load.victim)
    await lab.wait_until_reaped(worker_load.victim)
    held.release()
    worker_load.load.release_second_word()
    lab.thaw(worker_load.victim)
    await lab.wait_until_exited(worker_load.victim)
    await worker_load.assert_ends(worker_load.victim)


@worker.cell("sigstop-in-transaction")
async def is_frozen_inside_a_transaction(lab: Lab) -> None:
    """It is frozen during a takeover: it holds the locks of the response's row and its own."""
    load = await lab.start_load([LoadKind.STREAMED])
    worker_load = WorkerLoad(lab, load, load.owners())
    dead = worker_load.victim
    held_answers = {
        process: process.proxies.postgres.hold_answer(LOCK) for process in worker_load.others
    }
    lab.kill(dead)
    later_load = await lab.start_load([LoadKind.POLLED, LoadKind.CHAINED, LoadKind.WAITING])
    owners = later_load.owners()
    frozen = await _first_held(held_answers)
    lab.freeze(frozen)
    await lab.wait_until_reaped(frozen)
    await load.wait_for_words(2)
    lab.thaw(frozen)
    held_answers[frozen].release()
    await lab.wait_until_exited(frozen)
    await load.finish()
    await load.assert_outcomes(attempts=2)
    await later_load.finish()
    await later_load.assert_outcomes(
        attempts={kind: 2 if owner is frozen else 1 for kind, owner in owners.items()}
    )


@worker.cell("refused")
async def is_refused_by_its_postgres_for_a_moment(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.refuse()
    worker_load.load.release_second_word()
    await until(
        lambda: all(
            event in worker_load.victim.tail(10**6)
            for event in ("journal_database_unavailable", "heartbeat_unreachable")
        )
    )
    await _while_others_work(lab, worker_load.others)
    worker_load.victim.proxies.postgres.heal()
    await worker_load.load.finish()
    if await lab.is_dead(worker_load.victim):  # on a slow machine this took longer than the lease
        await lab.wait_until_exited(worker_load.victim)
        await worker_load.assert_ends(worker_load.victim)
    else:
        await worker_load.assert_ends()


@worker.cell("refused-past-the-lease")
async def is_refused_by_its_postgres_past_the_lease(lab: Lab) -> None:
    """Its subscription in Redis shows that it lives, but the lease decides."""
    await wait_until_tied(lab)
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.refuse()
    await _assert_is_replaced(lab, worker_load)


@worker.cell("hung-past-the-lease")
async def gets_no_reply_from_its_postgres(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    lab.fault("disconnected", worker_load.victim)
    worker_load.victim.proxies.postgres.hang()
    await _assert_is_replaced(lab, worker_load)


async def _assert_is_replaced(lab: Lab, worker_load: WorkerLoad) -> None:
    """Another worker takes over its responses; it exits when its database is back."""
    worker_load.load.release_second_word()
    await lab.wait_until_reaped(worker_load.victim)
    await worker_load.load.wait_for_words(2)
    worker_load.victim.proxies.postgres.heal()
    await lab.wait_until_exited(worker_load.victim)
    await worker_load.assert_ends(worker_load.victim)


async def _while_others_work(lab: Lab, others: Iterable[Service]) -> None:
    """Checks that a response completes at another worker."""
    answer = await lab.stack.api().create(lab.fake.script(reply("elsewhere")))
    assert answer["output_text"] == "elsewhere"
    assert all(process.running() for process in others)


@worker.latency_cells
async def has_slow_servers(lab: Lab, seconds: float) -> None:
    worker_load = await WorkerLoad.of(lab)
    for proxy in (worker_load.victim.proxies.postgres, worker_load.victim.proxies.redis):
        proxy.latency(seconds)
    worker_load.load.release_second_word()
    await worker_load.load.wait_for_words(2)
    await worker_load.assert_ends()


@worker.cell("pool-exhausted")
async def has_no_free_connection(lab: Lab) -> None:
    """Claims went through and their replies are held: the responses run once when they come."""
    worker_load = await WorkerLoad.of(lab)
    held_answers = {
        process: [process.proxies.postgres.hold_answer(CLAIM_NEW) for _ in range(POOL_SIZE)]
        for process in lab.stack.workers
    }
    queued: list[str] = []
    while not any(
        all(held.answered.is_set() for held in of_process) for of_process in held_answers.values()
    ):
        assert len(queued) < 500
        queued.append(await lab.stack.api().create_background(lab.fake.script(reply("late"))))
    worker_load.load.release_second_word()
    await worker_load.load.wait_for_words(2)
    for held in itertools.chain.from_iterable(held_answers.values()):
        held.release()
    for response_id in queued:
        assert (await lab.stack.api().wait_for_end(response_id))["output_text"] == "late"
    await worker_load.assert_ends()


@worker.cell("redis-refused")
async def is_refused_by_its_redis(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    worker_load.victim.proxies.redis.refuse()
    await _assert_works_without_redis(lab, worker_load)


@worker.cell("redis-hung")
async def gets_no_reply_from_its_redis(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    worker_load.victim.proxies.redis.hang()
    await _assert_works_without_redis(lab, worker_load)


async def _assert_works_without_redis(lab: Lab, worker_load: WorkerLoad) -> None:
    """Its events are not published; readers get them from the log."""
    worker_load.load.release_second_word()
    await worker_load.load.wait_for_words(2)
    await _while_others_work(lab, worker_load.others)
    worker_load.victim.proxies.redis.heal()
    await worker_load.assert_ends()


# --- one of several sweepers ---


async def _start_reaping(lab: Lab) -> tuple[WorkerLoad, Service, HeldAnswer]:
    """Kills a worker; the first sweeper that locks its row to reap it waits for the held reply. The
    web process declares nothing dead meanwhile: its Redis does not answer. Where processors are so
    busy that the lease runs out first, it does, and no sweeper is held: these cells are `long`.

    Returns the load, that sweeper and the held reply.
    """
    worker_load = await WorkerLoad.of(lab)
    redis = lab.stack.webs[0].proxies.redis
    redis.hang()
    held_answers = {
        process: process.proxies.postgres.hold_answer(REAP_LOCK) for process in worker_load.others
    }
    lab.kill(worker_load.victim)
    reaper = await _first_held(held_answers)
    redis.heal()
    return worker_load, reaper, held_answers[reaper]


@sweeper.cell("kill9")
async def is_killed_while_it_reaps(lab: Lab) -> None:
    worker_load, reaper, _ = await _start_reaping(lab)
    lab.kill(reaper)
    await worker_load.assert_ends(worker_load.victim, reaper)


@sweeper.cell("sigstop")
async def is_frozen_while_it_reaps(lab: Lab) -> None:
    """It locks the dead worker's row. PostgreSQL ends the session; another sweeper reaps both."""
    worker_load, reaper, held = await _start_reaping(lab)
    lab.freeze(reaper)
    await lab.wait_until_reaped(worker_load.victim)
    await lab.wait_until_reaped(reaper)
    held.release()
    lab.thaw(reaper)
    await lab.wait_until_exited(reaper)
    await worker_load.assert_ends(worker_load.victim, reaper)


@sweeper.cell("sigterm")
async def is_stopped_while_it_reaps(lab: Lab) -> None:
    """Its own responses are handed over: a second attempt, and no death."""
    worker_load, reaper, held = await _start_reaping(lab)
    lab.fault("stopped", reaper)
    reaper.request_stop()
    # Until it stops it would claim what it has reaped, and hand that over too.
    await until(lambda: b"worker_stopping" in reaper.log.read_bytes(), 20)
    held.release()
    lab.stack.forget(reaper)
    await until(lambda: not reaper.running(), 20)
    assert reaper.exit_code() == 0
    await worker_load.load.finish()
    await worker_load.load.assert_outcomes(
        attempts=worker_load.attempts(worker_load.victim, reaper),
        handed_over=worker_load.runs_of(reaper),
    )


@sweeper.cell("latency-1s")
async def gets_late_replies(lab: Lab) -> None:
    """A late reply proves nothing: it reaps no process, another one does."""
    worker_load = await WorkerLoad.of(lab)
    blind, _ = worker_load.others
    blind.proxies.postgres.latency(1.2)
    await _assert_reaped_by_another(lab, worker_load, blind)
    blind.proxies.postgres.heal()
    await worker_load.assert_ends(worker_load.victim)


@sweeper.cell("pool-exhausted")
async def has_no_free_connection_to_sweep(lab: Lab) -> None:
    """The only connection of each pool waits for the held reply of a sweep. A death is seen on
    another connection."""
    worker_load = await WorkerLoad.of(lab)
    held_answers = [process.proxies.postgres.hold_answer(ORPHANS) for process in worker_load.others]
    for held in held_answers:
        await held.answered.wait()
    lab.kill(worker_load.victim)
    await lab.wait_until_reaped(worker_load.victim)
    for held in held_answers:
        held.release()
    await worker_load.assert_ends(worker_load.victim)


@sweeper.cell("refused")
async def is_refused_while_a_worker_dies(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    blind, _ = worker_load.others
    lab.fault("disconnected", blind)
    blind.proxies.postgres.refuse()
    await _assert_both_replaced(lab, worker_load, blind)


@sweeper.cell("hung")
async def gets_no_reply_while_a_worker_dies(lab: Lab) -> None:
    worker_load = await WorkerLoad.of(lab)
    blind, _ = worker_load.others
    lab.fault("disconnected", blind)
    blind.proxies.postgres.hang()
    await _assert_both_replaced(lab, worker_load, blind)


async def _assert_both_replaced(lab: Lab, worker_load: WorkerLoad, cut_off: Service) -> None:
    """Other processes reap the dead worker and the one without a database."""
    await _assert_reaped_by_another(lab, worker_load, cut_off)
    await lab.wait_until_reaped(cut_off)
    cut_off.proxies.postgres.heal()
    await lab.wait_until_exited(cut_off)
    await worker_load.assert_ends(worker_load.victim, cut_off)


async def _assert_reaped_by_another(lab: Lab, worker_load: WorkerLoad, blind: Service) -> None:
    """Kills a worker and checks that not this sweeper reaps it: the other one does, or web."""
    lab.kill(worker_load.victim)
    await lab.wait_until_reaped(worker_load.victim)
    assert await lab.reaper_of(worker_load.victim) != blind.pid
