"""Where the cells of the fault matrix run: a deployment per victim, its cells one after another, the victims side by side."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.audit.record import Fault, FaultKind
from tests.support.api import Api, until
from tests.support.chaos.load import ALL, Load, LoadKind
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import (
    SHORT_LEASES,
    Databases,
    Service,
    Stack,
    SuiteSettings,
    databases,
    stack,
)

PAST_THE_LEASE = (
    float(SHORT_LEASES["BACKBURNER_LEASE__DURATION"])
    + float(SHORT_LEASES["BACKBURNER_LEASE__OBSERVE"])
    + 1
)
"""Seconds after which a silent process has been declared dead, if anybody can declare it."""
CELL_TIMEOUT = 240
"""Seconds that one cell may take on a busy machine."""
MAX_CONCURRENT = 4
"""Victims whose deployments run at the same time: on two cores more of them would only wait for each other."""
# What the servers' absence makes celery, redis-py and psycopg log.
ALLOWED_TRACEBACKS = (
    "psycopg",
    "redis.exceptions.",
    "kombu.exceptions.",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "BrokenPipeError",
)

Cell = Callable[["Lab"], Awaitable[None]]


class Victim:
    """What is to break, with the cells that break it; `wishes` are for its deployment."""

    def __init__(
        self, name: str, *, own_postgres: bool = False, default_leases: bool = False, **wishes: Any
    ) -> None:
        self.name = name
        self.leases = {} if default_leases else SHORT_LEASES
        self.own_postgres = own_postgres
        self.stack_options = wishes
        self.cells: dict[str, Cell] = {}

    def beside(self, name: str) -> "Victim":
        """Another victim, whose cells run in this one's deployment, after its own."""
        found = Victim(name)
        found.cells = self.cells
        return found

    def cell(self, fault: str) -> Callable[[Cell], Cell]:
        """Makes a coroutine function the cell `<victim>-<fault>`."""

        def add(cell: Cell) -> Cell:
            self.cells[f"{self.name}-{fault}"] = cell
            return cell

        return add


@dataclass(slots=True)
class Lab:
    """One victim's deployment, whole again at the beginning of each cell."""

    stack: Stack
    fake: FakeUpstream
    database_server: Databases
    webs: int
    workers: int
    loads: list[Load] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    """What was done in this cell, for the auditor."""

    async def start_load(self, kinds: Iterable[LoadKind] = ALL, *apis: Api) -> Load:
        """Responses that are running, for clients of these web processes, or of all."""
        found = Load(self.stack, self.fake, self.faults, kinds)
        self.loads.append(found)
        await found.begin(*(apis or map(self.stack.api, self.stack.webs)))
        return found

    def fault(self, what: FaultKind, target: Service | str) -> Fault:
        """Write down that this is done now."""
        found = Fault(what, target if isinstance(target, str) else target.name, time.monotonic())
        self.faults.append(found)
        return found

    def kill(self, process: Service) -> None:
        """kill -9."""
        self.fault("killed", process)
        self.stack.kill(process)

    def freeze(self, process: Service) -> None:
        """SIGSTOP."""
        self.fault("frozen", process)
        process.pause()

    def thaw(self, process: Service) -> None:
        """SIGCONT."""
        for fault in self.faults:
            if (fault.what, fault.target, fault.end) == ("frozen", process.name, None):
                fault.end = time.monotonic()
        process.resume()

    async def is_dead(self, process: Service) -> bool:
        """Whether the database has declared it dead."""
        question = "SELECT dead FROM workers WHERE pid = %s ORDER BY started_at DESC LIMIT 1"
        return bool(await self.stack.value(question, process.pid))

    async def wait_until_reaped(self, process: Service) -> None:
        """Wait until it has been declared dead."""
        await until(lambda: self.is_dead(process), 20)

    async def reaper_of(self, process: Service) -> int:
        """The pid of whoever declared it dead."""
        question = "SELECT r.pid FROM workers d JOIN workers r ON d.ended = 'reaped by ' || r.id WHERE d.pid = %s"
        found: int = await self.stack.value(question, process.pid)
        return found

    async def wait_until_exited(self, process: Service) -> None:
        """Wait until a process that was declared dead has noticed, and ended itself."""
        self.stack.forget(process)
        await until(lambda: not process.running(), 20)
        assert process.exit_code() == 70, (
            f"{process.name} ended with {process.exit_code()}\n{process.tail()}"
        )

    async def assert_works(self, web: int = 0) -> None:
        """A new response is served as if nothing had ever been."""
        answer = await self.stack.api(web).create(self.fake.script(reply("fine")), background=False)
        assert answer["output_text"] == "fine"

    def heal(self) -> None:
        """All ways of all processes are as they should be."""
        for wires in self.stack.proxies():
            for proxy in (wires.postgres, wires.redis, wires.upstream):
                proxy.heal()

    async def restore(self) -> None:
        """Heal what is broken and replace who has died."""
        self.heal()
        for load in self.loads:
            await load.disconnect()
        self.loads.clear()
        self.faults = []
        for process in [*self.stack.webs, *self.stack.workers]:
            process.resume()
            if not process.running() or await self.is_dead(process):
                self.stack.kill(process)
        while len(self.stack.webs) < self.webs:
            await self.stack.start_web()
        await asyncio.gather(
            *(self.stack.start_worker() for _ in range(self.workers - len(self.stack.workers)))
        )


@dataclass(slots=True)
class _CellResult:
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None

    def end(self, error: BaseException | None) -> None:
        """It is over, if it was not before."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


class Matrix:
    """Runs the wanted cells and keeps what became of each."""

    def __init__(
        self,
        victims: list[Victim],
        wanted: set[str],
        database_server: Databases,
        suite_settings: SuiteSettings,
        fake: FakeUpstream,
    ) -> None:
        self._surroundings = suite_settings
        self._servers = database_server
        self._fake = fake
        self._results = {
            name: _CellResult() for victim in victims for name in victim.cells if name in wanted
        }
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._starting = asyncio.Lock()
        self._victims = [
            victim for victim in victims if any(name in wanted for name in victim.cells)
        ]

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[None]:
        """While this lasts the cells are run."""
        runs = []
        for number, victim in enumerate(self._victims):
            own = folder / f"{number}-{victim.name}"
            own.mkdir()
            runs.append(asyncio.create_task(self._run(victim, own)))
        try:
            yield
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def result(self, name: str) -> None:
        """Wait for this cell; raises what it raised."""
        await self._results[name].ended.wait()
        error = self._results[name].error
        if error is not None:
            raise error

    async def _run(self, victim: Victim, folder: Path) -> None:
        cells = {name: cell for name, cell in victim.cells.items() if name in self._results}
        try:
            async with self._slots, AsyncExitStack() as opened:
                async with self._starting:
                    lab = await self._open(opened, victim, folder)
                for name, cell in cells.items():
                    await self._run_cell(lab, name, cell)
        except BaseException as error:
            for name in cells:
                self._results[name].end(error)
            raise

    async def _open(self, opened: AsyncExitStack, victim: Victim, folder: Path) -> Lab:
        """The victim's deployment, closed with `opened`."""
        database_server = self._servers
        if victim.own_postgres:
            database_server = await opened.enter_async_context(
                databases(folder / "pg", self._surroundings)
            )
        wishes: dict[str, Any] = {
            "webs": 2,
            "workers": 2,
            "proxied": True,
            "signed": True,
            "allowed_tracebacks": ALLOWED_TRACEBACKS,
            **victim.stack_options,
        }
        wishes["settings"] = {**victim.leases, **wishes.get("settings", {})}
        one = await opened.enter_async_context(
            stack(folder, database_server, self._surroundings, self._fake, **wishes)
        )
        return Lab(one, self._fake, database_server, wishes["webs"], wishes["workers"])

    async def _run_cell(self, lab: Lab, name: str, cell: Cell) -> None:
        outcome = self._results[name]
        begun = time.monotonic()
        error = None
        try:
            async with asyncio.timeout(CELL_TIMEOUT):
                await cell(lab)
        except Exception as fault:  # noqa: BLE001  # told by the test of that name
            error = fault
        print(
            f"{time.strftime('%H:%M:%S')} {time.monotonic() - begun:5.1f} s  {name} {error!r:.200}"
        )
        outcome.end(error)
        await lab.restore()
