"""Attacks of several projects at random, while the neighbour works."""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.abuse.attacks import ATTACKS
from tests.chaos.abuse.kinds import AttackKind
from tests.chaos.abuse.offender import Offender, Servers, endless_files
from tests.support import keys
from tests.support.abuse import AttackedStack, attacked_stack
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.embeddings import EMBEDDING_MODEL
from tests.support.fake_upstream import FakeUpstream
from tests.support.latencies import Latencies
from tests.support.mcp_servers import McpServers
from tests.support.neighbour import Measurement
from tests.support.stack import SuiteSettings, databases

SETTINGS = {
    "BACKBURNER_WEB__HEAD_TIME": "5",
    "BACKBURNER_WEB__BODY_PAUSE": "3",
    "BACKBURNER_WEB__SEND_TIMEOUT": "5",
    "BACKBURNER_TOOLS__TIME": "10",
    "BACKBURNER_QUOTAS__RUNNING": "300",
    "BACKBURNER_QUOTAS__QUEUED": "200",
    "BACKBURNER_QUOTAS__OPEN_STREAMS": "200",
    "BACKBURNER_QUOTAS__OPEN_SOCKETS": "100",
    "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
}
"""Time limits that end an attack before the campaign does, and quotas, which are unset by default.
The neighbour has the same quotas, and needs a tenth of them. Three projects together may not take
all slots of the worker: who waits for a slot waits as long as others need it (ADR 0041)."""
_STREAMS = 1000
"""Background responses that the worker runs at a time, as in `docker-compose.yml`."""
_FULL_SIZE = 5.0
"""Minutes of a campaign in which every attack has its full size."""
_KEY_TIME = 5.0
"""Seconds after which the neighbour uses a new API key."""
_LONGEST = 120.0
"""Seconds after which an attack is given up."""
_A_MOMENT = 12
"""Requests of the neighbour in 0.3 s: more than one in a hundred if a campaign takes seconds."""
_CHECK_INTERVAL = 0.2
"""Seconds between two looks whether a process has ended."""


@dataclass(frozen=True, slots=True)
class AbusePlan:
    """What a campaign does."""

    minutes: float
    """After this time no attack begins; each begins at least once."""
    offenders: int
    """How many projects attack at the same time; 1: the attacks one by one."""
    kinds: Sequence[AttackKind] = tuple(ATTACKS)
    seed: int = 1

    @property
    def scale(self) -> float:
        """The size of attacks that take minutes."""
        return min(1.0, self.minutes / _FULL_SIZE)


@dataclass(slots=True)
class AttackRun:
    """One attack of the campaign."""

    kind: AttackKind
    began: float
    ended: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        answers = ", ".join(f"{answer} x {count}" for answer, count in self.answers.most_common())
        return f"{self.ended - self.began:6.1f} s  {self.kind.name}: {answers}"

    def violations(self) -> list[str]:
        """Answers that no offender should get."""
        found = [
            f"{self.kind.name}: {count} answers were {answer}"
            for answer, count in self.answers.items()
            if answer.startswith(("broke", "5")) and answer != "503"
        ]
        if self.kind.refused_with and not self.kind.refused_with & set(self.answers):
            found.append(f"{self.kind.name} was not refused: {dict(self.answers)}")
        return found


@dataclass(slots=True)
class AbuseResult:
    """What happened in a campaign."""

    attacked: AttackedStack
    runs: list[AttackRun] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """The processes that have ended, and how."""
    began: float = 0.0
    until: float = 0.0

    def during(self, runs: Sequence[AttackRun]) -> Latencies:
        """The neighbour's requests in the times of these attacks."""
        chosen = [
            one
            for one in self.measurements
            if any(run.began <= one.began <= run.ended for run in runs)
        ]
        return self.attacked.latencies(chosen, self.began, self.until)

    def violations(self) -> list[str]:
        """How the promise was broken."""
        neighbour = self.attacked.latencies(self.measurements, self.began, self.until)
        of_attacks = Counter(each for run in self.runs for each in run.violations())
        return [*self.ended, *neighbour.violations(self.attacked.idle, _A_MOMENT), *of_attacks]


async def run_abuse(plan: AbusePlan, attacked: AttackedStack, servers: Servers) -> AbuseResult:
    """Runs a campaign in this deployment."""
    result = AbuseResult(attacked, began=time.monotonic())
    attacks = _attacks(plan)
    background = {
        asyncio.create_task(_watch(result)),
        asyncio.create_task(_rotate_keys(attacked)),
    }
    async with attacked.neighbour() as neighbour:
        try:
            async with asyncio.TaskGroup() as offenders:
                for number in range(plan.offenders):
                    offender = Offender(attacked, servers, number, plan.scale)
                    offenders.create_task(_attack(offender, attacks, result))
        finally:
            result.until = time.monotonic()
            for task in background:
                task.cancel()
            await asyncio.wait(background)
        result.ended += await attacked.replace_dead()
    result.measurements = neighbour.measurements()
    return result


@asynccontextmanager
async def open_deployment() -> AsyncIterator[tuple[AttackedStack, Servers]]:
    """A deployment with servers of its own, and a quarantine worker."""
    suite_settings = SuiteSettings(database_url=None, redis_url=None)
    with tempfile.TemporaryDirectory(prefix="backburner-abuse-") as temporary:
        folder = Path(temporary)
        async with (
            FakeUpstream() as upstream,
            McpServers() as mcp,
            endless_files() as files,
            databases(folder / "postgres", suite_settings) as database_server,
            attacked_stack(
                folder,
                database_server,
                suite_settings,
                upstream,
                quarantine=True,
                streams=_STREAMS,
                settings=SETTINGS,
                allowed_tracebacks=SERVER_TRACEBACKS,
            ) as attacked,
        ):
            yield attacked, Servers(upstream, mcp, files)


def _attacks(plan: AbusePlan) -> Iterator[AttackKind]:
    """The attacks in the order in which they begin: all of them once, then at random."""
    chance = random.Random(plan.seed)
    end = time.monotonic() + 60 * plan.minutes
    kinds = list(plan.kinds)
    if plan.offenders > 1:
        chance.shuffle(kinds)
    yield from kinds
    while time.monotonic() < end:
        yield chance.choice(plan.kinds)


async def _attack(offender: Offender, attacks: Iterator[AttackKind], result: AbuseResult) -> None:
    """Lets an offender take one attack after the other."""
    async with offender:
        for kind in attacks:
            offender.answers = Counter()
            run = AttackRun(kind, time.monotonic(), answers=offender.answers)
            result.runs.append(run)
            try:
                async with asyncio.timeout(_LONGEST):
                    await kind.run(offender)
            except TimeoutError:
                offender.count("given up")
            except Exception as fault:  # noqa: BLE001  # the next attack must run
                offender.count(f"broke: {fault!r}"[:100])
            run.ended = time.monotonic()
            offender.servers.forget()
            print(run, file=sys.stderr, flush=True)


async def _watch(result: AbuseResult) -> None:
    """Starts a successor of each process that ends, as a supervisor does."""
    while True:
        for ended in await result.attacked.replace_dead():
            names = [run.kind.name for run in result.runs if not run.ended]
            result.ended.append(f"{ended} during: {'; '.join(names)}")
            print(f"          {result.ended[-1]}", file=sys.stderr, flush=True)
        await asyncio.sleep(_CHECK_INTERVAL)


async def _rotate_keys(attacked: AttackedStack) -> None:
    """Gives the neighbour a new key now and then."""
    while True:
        await asyncio.sleep(_KEY_TIME)
        key = await asyncio.to_thread(keys.create, attacked.stack.dsn, "neighbour")
        with attacked.neighbour_keys.open("a") as file:
            print(key, file=file)
