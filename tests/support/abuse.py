"""A deployment with the memory of Compose's, a project that attacks it, and one that works on.

    async with attacked_stack(folder, database_server, suite_settings, fake) as attacked:
        async with attacked.attack("an enum of {}") as attack:
            answer = await attacked.offender().call("POST", "/responses", body)
            attack.count(answer.status)
        assert attack.answers == {413: 1}

The end of `attack` checks the promise, and raises AssertionError with all that is broken:

- no process has died: those that ran still run, and none was declared dead. A web process with
  more than 1 GB, or a worker with more than 2 GB, is killed (tests/support/memory_limit.py);
- every request of the neighbour (tests/support/neighbour.py) was answered as it should be;
- the neighbour's requests took at most twice what they took on the idle server, or 250 ms more.

The last is judged as follows, because tests share two cores with others. Idle is the 99th
percentile of the same kind of request, measured in the same deployment before its first attack.
From each request's time is taken off how long the neighbour, or a process of the product that the
request needs, waited for a CPU meanwhile. What an attack costs by blocking an event loop or the
interpreter's lock, by waiting for PostgreSQL or for a slot, stays in it. One request in a hundred,
or two, may take longer, but none may take seconds longer (tests/support/latencies.py).
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Unpack

from cli.embedded.process import Process, free_port
from tests.support import keys
from tests.support.api import Api, until
from tests.support.embeddings import EMBEDDING_MODEL
from tests.support.fake_upstream import FakeUpstream
from tests.support.latencies import Latencies, Latency
from tests.support.memory_limit import MIB, MemoryLimit, WatchedProcess
from tests.support.neighbour import (
    MODEL,
    Measurement,
    NeighbourArguments,
    read_measurements,
)
from tests.support.stack import (
    DEFAULT_STREAMS,
    Databases,
    Service,
    Stack,
    StackOptions,
    SuiteSettings,
    stack,
)
from tests.support.tool_turns import TOOL_SETTINGS

WEB_LIMIT = 1024 * MIB
WORKER_LIMIT = 2048 * MIB
"""The limits in `docker-compose.yml`."""
_IDLE_TIME = 2.5
"""Seconds in which the idle server is measured."""
_LONG = 3.0
"""Seconds of a request in which the waits of its processes are not summed up."""
_AFTERMATH = 0.7
"""Seconds for which the neighbour goes on after an attack."""
CONFIGURATION = """
[upstreams.attacked]
base_url = "{base_url}"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"

[upstreams.neighbour]
base_url = "http://127.0.0.1:{neighbour_port}/v1"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"

[routes]
"*" = "attacked"
"{model}" = "neighbour"
"{embedding_model}" = "neighbour"
"""


@dataclass(slots=True)
class Attack:
    """One attack, what was answered, and what it cost."""

    name: str
    began: float
    ended: float = 0.0
    answers: Counter[int | str] = field(default_factory=Counter)
    """By HTTP status, or by what else came."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The largest memory of each process meanwhile, in bytes."""
    latencies: Latencies = field(default_factory=Latencies)
    violations: list[str] = field(default_factory=list)

    def count(self, answer: int | str) -> None:
        """Counts an answer."""
        self.answers[answer] += 1


class AttackedStack:
    """A running deployment, whose processes are limited and watched."""

    def __init__(self, running: Stack, neighbour_port: int, streams: int) -> None:
        """`streams`: slots of each worker."""
        self.stack = running
        self._streams = streams
        self.memory = MemoryLimit()
        self.idle = Latencies()
        """Of the neighbour, before the first attack."""
        self.neighbour_keys = running.folder / "neighbour-keys"
        """The file with the neighbour's API key, in its last line; it may be appended to."""
        self._neighbour_port = neighbour_port
        self._offender_key = keys.create(running.dsn, "offender")
        self._watched: dict[str, WatchedProcess] = {}
        self._measured = 0

    async def open(self, postgres: Process | None) -> None:
        """Begins to limit, and measures the idle server."""
        self.neighbour_keys.write_text(keys.create(self.stack.dsn, "neighbour") + "\n")
        self.memory.start()
        if postgres is not None:
            self.memory.watch(WatchedProcess("postgres", postgres.pid, None, "children"))
        self.watch()
        async with self.neighbour() as run:
            began = time.monotonic()
            await asyncio.sleep(_IDLE_TIME)
        self.idle = self.latencies(run.measurements(), began, time.monotonic())
        assert not self.idle.faults, self.idle.faults

    def offender(self, web: int = 0) -> Api:
        """A raw client of the attacking project."""
        return self.stack.api(web, key=self._offender_key)

    def watch(self) -> None:
        """Limits the processes that were started since the last call."""
        for processes, limit in (
            (self.stack.webs, WEB_LIMIT),
            (self.stack.workers, WORKER_LIMIT),
        ):
            for one in processes:
                if one.name not in self._watched:
                    watched = WatchedProcess(one.name, one.pid, limit)
                    if one.port is None:
                        watched.works_in = "threads"
                    self._watched[one.name] = self.memory.watch(watched)

    def limit(self, process: Service, size: int) -> None:
        """Limits a process to another number of bytes."""
        self._watched[process.name].limit = size

    @asynccontextmanager
    async def attack(self, name: str, *, lasts: float = 1.0) -> AsyncIterator[Attack]:
        """Runs the body while the neighbour works, for `lasts` seconds or more; checks the promise.

        Raises AssertionError if it is broken. A process that was killed is started again.
        """
        attack = Attack(name, time.monotonic())
        reaped = await self.count_reaped()
        async with self.neighbour() as run:
            attack.began = time.monotonic()
            yield attack
            rest = attack.began + lasts - time.monotonic()
            await asyncio.sleep(max(_AFTERMATH, rest))
            attack.ended = time.monotonic()
        attack.latencies = self.latencies(run.measurements(), attack.began, attack.ended)
        attack.peaks = self.peaks(attack.began, time.monotonic())
        attack.violations = attack.latencies.violations(self.idle)
        ended = await self.replace_dead()
        attack.violations += ended

        async def are_declared_dead() -> bool:
            return await self.count_reaped() >= reaped + len(ended)

        # Otherwise the next attack would count a death of this one.
        await until(are_declared_dead, 60)
        if (count := await self.count_reaped() - reaped) > 0:
            attack.violations.append(f"{count} processes were declared dead")
        assert not attack.violations, "\n".join([f"{name}:", *attack.violations])

    @asynccontextmanager
    async def neighbour(self) -> AsyncIterator["NeighbourRun"]:
        """The neighbour works meanwhile. At the end all its requests have been answered."""
        self._measured += 1
        arguments = NeighbourArguments(
            [f"http://127.0.0.1:{web.port}/v1" for web in self.stack.webs],
            str(self.neighbour_keys),
            self._neighbour_port,
            str(self.stack.folder / f"neighbour-{self._measured}.jsonl"),
            ingests="BACKBURNER_RETRIEVAL__EMBEDDING_MODEL" in self.stack.settings,
        )
        async with neighbour_process(self.stack, self.memory, arguments) as run:
            yield run

    def latencies(
        self, measurements: Iterable[Measurement], began: float, ended: float
    ) -> Latencies:
        """Those of the requests that began between two moments."""
        chosen = [one for one in measurements if began <= one.began <= ended]
        return Latencies(
            [Latency(one.kind, one.seconds, self._waited(one)) for one in chosen],
            [f"{one.kind}: {one.fault}" for one in chosen if one.fault is not None],
        )

    def peaks(self, began: float, ended: float) -> dict[str, int]:
        """The largest memory of each process of the product between two moments, in bytes."""
        watched = self._watched.values()
        return {one.name: one.peak_between(began, ended) for one in watched if one.at}

    async def replace_dead(self) -> list[str]:
        """Starts a successor of each process that has ended; returns how they ended."""
        self.watch()
        ended: list[str] = []
        for process in [*self.stack.webs, *self.stack.workers]:
            killed_at = self._watched[process.name].killed_at
            if killed_at is not None:
                process.wait_for_exit(5)
            if process.running():
                continue
            why = f"with {killed_at / MIB:.0f} MiB" if killed_at else f"by {process.exit_code()}"
            ended.append(f"{process.name} was ended {why}")
            self.stack.forget(process)
            if process.port is not None:
                await self.stack.start_web(process.port)
            else:
                is_quarantine = process.name.startswith("quarantine")
                await self.stack.start_worker(streams=self._streams, quarantine=is_quarantine)
        self.watch()
        return ended

    async def count_reaped(self) -> int:
        """How many processes were ever declared dead."""
        count: int = await self.stack.value("SELECT count(*) FROM workers WHERE dead")
        return count

    def _waited(self, one: Measurement) -> float:
        """How long the processes that a request needs waited for a CPU meanwhile, in seconds. Over
        many seconds each of them waits now and then, whether the request needs it then or not: of a
        long request only what one of them waited is taken off."""
        needs_worker = one.kind in ("start", "stream")
        needed = ("neighbour", "postgres", "web", *(("worker",) if needs_worker else ()))
        end = one.began + one.seconds
        waits = [
            process.waited_between(one.began, end)
            for process in self.memory.processes
            if process.name.startswith(needed)
        ]
        return sum(waits) if one.seconds < _LONG else max(waits)


@dataclass(frozen=True, slots=True)
class NeighbourRun:
    """One run of the neighbour."""

    path: Path
    """The file with its measurements."""

    def measurements(self) -> list[Measurement]:
        """Those of the requests that were answered so far."""
        return read_measurements(self.path) if self.path.exists() else []


@asynccontextmanager
async def neighbour_process(
    running: Stack, memory: MemoryLimit, arguments: NeighbourArguments
) -> AsyncIterator[NeighbourRun]:
    """The neighbour of a deployment works meanwhile. At the end all its requests have been
    answered."""
    run = NeighbourRun(Path(arguments.measurements))
    process = Service(
        run.path.stem,
        run.path.with_suffix(".log"),
        "tests.support.neighbour",
        json.dumps(asdict(arguments)),
        environment=running.environment(),
    )
    process.launch()
    memory.watch(WatchedProcess("neighbour", process.pid, None))
    try:
        await until(lambda: run.measurements() or not process.running(), 30)
        assert process.running(), process.tail()
        yield run
        await process.stop_cleanly(60)
    finally:
        process.kill()


@asynccontextmanager
async def attacked_stack(
    folder: Path,
    server_databases: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    **options: Unpack[StackOptions],
) -> AsyncIterator[AttackedStack]:
    """A deployment as `stack` makes it, limited, and measured while it is idle.

    Requests of `offender()` go to `fake`. MCP servers and files on this machine may be reached.
    """
    port = free_port()
    configuration = folder / "backburner.toml"
    configuration.write_text(
        CONFIGURATION.format(
            base_url=fake.base_url,
            neighbour_port=port,
            model=MODEL,
            embedding_model=EMBEDDING_MODEL,
        )
    )
    options["settings"] = {
        "BACKBURNER_CONFIG": str(configuration),
        # The default in a container with this limit.
        "BACKBURNER_WORKER__MEMORY": str(WORKER_LIMIT * 4 // 5),
        **TOOL_SETTINGS,
        **options.get("settings", {}),
    }
    async with stack(folder, server_databases, suite_settings, fake, **options) as running:
        attacked = AttackedStack(running, port, options.get("streams", DEFAULT_STREAMS))
        try:
            await attacked.open(server_databases.server)
            yield attacked
        finally:
            attacked.memory.stop()
