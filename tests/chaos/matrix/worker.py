"""The fault matrix: a worker, and one of several sweepers.

A worker is stopped where it hurts without a hook in it: the proxy before its Postgres keeps the answer to a statement, and while
that is unheard the process is frozen or killed.
"""

from collections.abc import Iterable

from tests.support.api import decode, until
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.load import DELTA, Kind, Load
from tests.support.chaos.proxy import Snare
from tests.support.fake_upstream import reply
from tests.support.stack import Service

worker = Victim("worker", webs=1, workers=3)
sweeper = Victim("sweeper", webs=1, workers=3, settings={"BACKBURNER_WORKER__POOL_SIZE": "1"})

JOURNAL = b"INSERT INTO journal"
RENEW = b"UPDATE workers SET expires_at"
LOCK = b"IS NOT NULL AS started"
"""Of the statement that locks a response which is about to be taken over, inside the transaction that does it."""
REAP_LOCK = b"NOT dead AND expires_at ="
EXPIRED = b"expires_at < clock_timestamp() ORDER BY id"
CLAIM_FRESH = b"r.worker IS NULL AND r.attempt = 0"


class Crew:
    """The workers of a load: who runs what, and whose run it was that broke."""

    def __init__(self, lab: Lab, load: Load, owners: dict[Kind, Service]) -> None:
        self.lab = lab
        self.load = load
        self.owners = owners

    @classmethod
    async def of(cls, lab: Lab) -> "Crew":
        """A load that runs, and its workers."""
        load = await lab.load()
        return cls(lab, load, load.owners())

    @property
    def victim(self) -> Service:
        """The worker that runs the streamed response."""
        return self.owners[Kind.STREAMED]

    @property
    def others(self) -> list[Service]:
        """Who else is there."""
        return [process for process in self.lab.stack.workers if process is not self.victim]

    def runs_of(self, owner: Service) -> list[Kind]:
        """What this worker ran when it all began."""
        return [kind for kind, found in self.owners.items() if found is owner]

    def attempts(self, *dead: Service) -> dict[Kind, int]:
        """How often each response was begun if these workers died once."""
        return {kind: 2 if owner in dead else 1 for kind, owner in self.owners.items()}

    async def ends(self, *dead: Service) -> None:
        """Everything ends, and nothing but what the dead ran was begun again."""
        await self.load.finish()
        await self.load.judge(attempts=self.attempts(*dead))


async def _first_caught(snares: dict[Service, Snare]) -> Service:
    """Whose snare caught first; the others' let everything pass."""
    await until(lambda: any(snare.caught.is_set() for snare in snares.values()), 20)
    victim = next(process for process, snare in snares.items() if snare.caught.is_set())
    for process, snare in snares.items():
        if process is not victim:
            snare.release()
    return victim


# --- worker ---


@worker.cell("kill9-unpublished")
async def dies_between_journal_and_publish(lab: Lab) -> None:
    """What was stored and never shown is shown by the next owner."""
    crew = await Crew.of(lab)
    snare = crew.victim.wires.postgres.hold(JOURNAL)
    crew.load.go_on()
    await snare.caught.wait()
    lab.kill(crew.victim)
    await crew.ends(crew.victim)
    assert 2 in [
        _spoken_twice(crew.load, kind)
        for kind, owner in crew.owners.items()
        if owner is crew.victim
    ]


def _spoken_twice(load: Load, kind: Kind) -> int:
    """How often a reader was told the second word: once by each worker, if the first one's was stored."""
    deltas = [
        event["delta"] for event in map(decode, load.of(kind).frames) if event["type"] == DELTA
    ]
    return deltas.count("two ")


@worker.cell("sigstop-unpublished")
async def stalls_between_journal_and_publish(lab: Lab) -> None:
    """Past its lease another worker goes on; what the first one publishes when it wakes up changes nothing."""
    crew = await Crew.of(lab)
    snare = crew.victim.wires.postgres.hold(JOURNAL)
    crew.load.go_on()
    await snare.caught.wait()
    lab.freeze(crew.victim)
    snare.release()
    await lab.reaped(crew.victim)
    await crew.load.heard(3, crew.runs_of(crew.victim))
    lab.thaw(crew.victim)
    await lab.gone(crew.victim)
    await crew.ends(crew.victim)


@worker.cell("sigstop-before-use")
async def stalls_between_heartbeat_and_use(lab: Lab) -> None:
    """It wakes up with a renewal in its hand that was worth something when it was given."""
    crew = await Crew.of(lab)
    snare = crew.victim.wires.postgres.hold(RENEW)
    await snare.caught.wait()
    lab.freeze(crew.victim)
    await lab.reaped(crew.victim)
    snare.release()
    crew.load.go_on()
    lab.thaw(crew.victim)
    await lab.gone(crew.victim)
    await crew.ends(crew.victim)


@worker.cell("sigstop-in-transaction")
async def stalls_inside_a_transaction(lab: Lab) -> None:
    """While it takes a dead worker's response over: it holds that row's lock, and its own."""
    load = await lab.load([Kind.STREAMED])
    crew = Crew(lab, load, load.owners())
    dead = crew.victim
    snares = {process: process.wires.postgres.hold(LOCK) for process in crew.others}
    lab.kill(dead)
    later = await lab.load([Kind.POLLED, Kind.CHAINED, Kind.WAITING])
    owners = later.owners()
    stalled = await _first_caught(snares)
    lab.freeze(stalled)
    await lab.reaped(stalled)
    await load.heard(2)
    lab.thaw(stalled)
    snares[stalled].release()
    await lab.gone(stalled)
    await load.finish()
    await load.judge(attempts=2)
    await later.finish()
    await later.judge(
        attempts={kind: 2 if owner is stalled else 1 for kind, owner in owners.items()}
    )


@worker.cell("refused")
async def loses_its_postgres_for_a_moment(lab: Lab) -> None:
    crew = await Crew.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.wires.postgres.refuse()
    crew.load.go_on()
    await until(
        lambda: all(
            words in crew.victim.tail(10**6) for words in ("journal_away", "heartbeat_unreachable")
        )
    )
    await _while_others_work(lab, crew.others)
    crew.victim.wires.postgres.heal()
    await crew.load.finish()
    if await lab.is_dead(crew.victim):  # on a slow machine the moment was longer than the lease
        await lab.gone(crew.victim)
        await crew.ends(crew.victim)
    else:
        await crew.ends()


@worker.cell("refused-past-the-lease")
async def loses_its_postgres_for_longer(lab: Lab) -> None:
    crew = await Crew.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.wires.postgres.refuse()
    await _replaced_while_away(lab, crew)


@worker.cell("hung-past-the-lease")
async def hears_nothing_from_its_postgres(lab: Lab) -> None:
    crew = await Crew.of(lab)
    lab.fault("parted", crew.victim)
    crew.victim.wires.postgres.hang()
    await _replaced_while_away(lab, crew)


async def _replaced_while_away(lab: Lab, crew: Crew) -> None:
    crew.load.go_on()
    await lab.reaped(crew.victim)
    await crew.load.heard(2)
    crew.victim.wires.postgres.heal()
    await lab.gone(crew.victim)
    await crew.ends(crew.victim)


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
    crew = await Crew.of(lab)
    for proxy in (crew.victim.wires.postgres, crew.victim.wires.redis):
        proxy.latency(seconds)
    crew.load.go_on()
    await crew.load.heard(2)
    await crew.ends()


@worker.cell("pool-exhausted")
async def has_all_its_connections_stuck(lab: Lab) -> None:
    """Claims that went through and whose answers nobody hears: they run when those come, once."""
    crew = await Crew.of(lab)
    snares = [
        process.wires.postgres.hold(CLAIM_FRESH) for process in lab.stack.workers for _ in range(8)
    ]
    waiting = [await lab.stack.api().background(lab.fake.script(reply("late"))) for _ in range(24)]
    await until(lambda: sum(snare.caught.is_set() for snare in snares) >= 8)
    crew.load.go_on()
    await crew.load.heard(2)
    for snare in snares:
        snare.release()
    for response_id in waiting:
        assert (await lab.stack.api().ended(response_id))["output_text"] == "late"
    await crew.ends()


@worker.cell("redis-refused")
async def loses_its_redis(lab: Lab) -> None:
    crew = await Crew.of(lab)
    crew.victim.wires.redis.refuse()
    await _unheard(lab, crew)


@worker.cell("redis-hung")
async def hears_nothing_from_its_redis(lab: Lab) -> None:
    crew = await Crew.of(lab)
    crew.victim.wires.redis.hang()
    await _unheard(lab, crew)


async def _unheard(lab: Lab, crew: Crew) -> None:
    """Nobody hears it publish, and everybody is told: by the logs."""
    crew.load.go_on()
    await crew.load.heard(2)
    await _while_others_work(lab, crew.others)
    crew.victim.wires.redis.heal()
    await crew.ends()


# --- one of several sweepers ---


async def _reaping(lab: Lab) -> tuple[Crew, Service, Snare]:
    """A worker has died, and the first sweeper that is about to declare it dead has its row locked: that one, with its snare."""
    crew = await Crew.of(lab)
    snares = {process: process.wires.postgres.hold(REAP_LOCK) for process in crew.others}
    lab.kill(crew.victim)
    reaper = await _first_caught(snares)
    return crew, reaper, snares[reaper]


@sweeper.cell("kill9")
async def dies_while_it_reaps(lab: Lab) -> None:
    crew, reaper, _ = await _reaping(lab)
    lab.kill(reaper)
    await crew.ends(crew.victim, reaper)


@sweeper.cell("sigstop")
async def stalls_while_it_reaps(lab: Lab) -> None:
    """It holds the lock of the one it reaps. Postgres ends such a session, another sweeper reaps both."""
    crew, reaper, snare = await _reaping(lab)
    lab.freeze(reaper)
    await lab.reaped(crew.victim)
    await lab.reaped(reaper)
    snare.release()
    lab.thaw(reaper)
    await lab.gone(reaper)
    await crew.ends(crew.victim, reaper)


@sweeper.cell("sigterm")
async def is_stopped_while_it_reaps(lab: Lab) -> None:
    """Its own responses are handed over: begun again, and no death."""
    crew, reaper, snare = await _reaping(lab)
    lab.fault("stopped", reaper)
    reaper.ask_to_stop()
    snare.release()
    lab.stack.forget(reaper)
    await until(lambda: not reaper.running(), 20)
    assert reaper.exit_code() == 0
    await crew.load.finish()
    await crew.load.judge(
        attempts=crew.attempts(crew.victim, reaper), handed_over=crew.runs_of(reaper)
    )


@sweeper.cell("latency-1s")
async def sees_everything_late(lab: Lab) -> None:
    """An answer that took so long proves nothing: it reaps nobody, the other one does."""
    crew = await Crew.of(lab)
    blinded, seeing = crew.others
    blinded.wires.postgres.latency(1.2)
    await _left_to(lab, crew, seeing)
    blinded.wires.postgres.heal()
    await crew.ends(crew.victim)


@sweeper.cell("pool-exhausted")
async def has_no_connection_to_sweep_with(lab: Lab) -> None:
    """Its only one is stuck in a sweep whose answer does not come."""
    crew = await Crew.of(lab)
    blinded, seeing = crew.others
    snare = blinded.wires.postgres.hold(EXPIRED)
    await snare.caught.wait()
    await _left_to(lab, crew, seeing)
    snare.release()
    await crew.ends(crew.victim)


@sweeper.cell("refused")
async def sees_nothing(lab: Lab) -> None:
    crew = await Crew.of(lab)
    blinded, seeing = crew.others
    lab.fault("parted", blinded)
    blinded.wires.postgres.refuse()
    await _both_replaced(lab, crew, blinded, seeing)


@sweeper.cell("hung")
async def waits_for_what_it_would_see(lab: Lab) -> None:
    crew = await Crew.of(lab)
    blinded, seeing = crew.others
    lab.fault("parted", blinded)
    blinded.wires.postgres.hang()
    await _both_replaced(lab, crew, blinded, seeing)


async def _both_replaced(lab: Lab, crew: Crew, blinded: Service, seeing: Service) -> None:
    await _left_to(lab, crew, seeing)
    await lab.reaped(blinded)
    blinded.wires.postgres.heal()
    await lab.gone(blinded)
    await crew.ends(crew.victim, blinded)


async def _left_to(lab: Lab, crew: Crew, seeing: Service) -> None:
    """A worker dies, and it is this sweeper that notices."""
    lab.kill(crew.victim)
    await lab.reaped(crew.victim)
    assert await lab.reaper_of(crew.victim) == seeing.pid
