"""Runs the cells of the fault matrix: one deployment per victim, its cells one after the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.embedded.postgres import Postgres
from cli.embedded.valkey import Valkey
from tests.chaos.audit.record import Fault, FaultKind
from tests.support.api import Api, until
from tests.support.chaos.load import Load
from tests.support.chaos.load_client import ALL, LoadKind
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
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
"""Seconds after which a silent process was declared dead, if another process could do it."""
CELL_TIMEOUT = 240
"""Seconds that one cell may take on a busy machine."""
MAX_CONCURRENT = 4
"""Victims whose deployments run at the same time; more of them would be slower on two cores."""

Cell = Callable[["Lab"], Awaitable[None]]
LatencyCell = Callable[["Lab", float], Awaitable[None]]


class Victim:
    """A process or server and the cells that break it; `options` are for its deployment."""

    def __init__(
        self, name: str, *, own_postgres: bool = False, default_leases: bool = False, **options: Any
    ) -> None:
        self.name = name
        self.leases = {} if default_leases else SHORT_LEASES
        self.own_postgres = own_postgres
        self.stack_options = options
        self.cells: dict[str, Cell] = {}

    def beside(self, name: str) -> "Victim":
        """Another victim whose cells run in this one's deployment, after its own cells."""
        victim = Victim(name)
        victim.cells = self.cells
        return victim

    def cell(self, fault: str) -> Callable[[Cell], Cell]:
        """Makes a coroutine function the cell `<victim>-<fault>`."""

        def add(cell: Cell) -> Cell:
            self.cells[f"{self.name}-{fault}"] = cell
            return cell

        return add

    def latency_cells(self, cell: LatencyCell) -> LatencyCell:
        """Makes a coroutine function the cells `latency-1ms` and `latency-1s`."""
        self.cell("latency-1ms")(lambda lab: cell(lab, 0.001))
        self.cell("latency-1s")(lambda lab: cell(lab, 1.0))
        return cell


@dataclass(slots=True)
class Lab:
    """One victim's deployment; it is repaired before each cell."""

    stack: Stack
    fake: FakeUpstream
    database_server: Databases
    webs: int
    workers: int
    loads: list[Load] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    """The faults of this cell, for the auditor."""

    @property
    def postgres(self) -> Postgres:
        """The PostgreSQL server, for victims with `own_postgres`."""
        assert self.database_server.server is not None
        return self.database_server.server

    @property
    def valkey(self) -> Valkey:
        """The Redis server."""
        assert self.stack.valkey is not None
        return self.stack.valkey

    async def start_load(self, kinds: Iterable[LoadKind] = ALL, *apis: Api) -> Load:
        """Starts responses for clients of these web processes, or of all."""
        load = Load(self.stack, self.fake, self.faults, kinds)
        self.loads.append(load)
        await load.begin(*(apis or map(self.stack.api, self.stack.webs)))
        return load

    def fault(self, what: FaultKind, target: Service | str) -> Fault:
        """Records that this fault begins now."""
        fault = Fault(what, target if isinstance(target, str) else target.name, time.monotonic())
        self.faults.append(fault)
        return fault

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
        """Returns whether the database has declared it dead."""
        question = "SELECT dead FROM workers WHERE pid = %s ORDER BY started_at DESC LIMIT 1"
        return bool(await self.stack.value(question, process.pid))

    async def wait_until_reaped(self, process: Service) -> None:
        """Waits until it has been declared dead."""
        await until(lambda: self.is_dead(process), 20)

    async def reaper_of(self, process: Service) -> int:
        """Returns the pid of the process that declared it dead."""
        question = (
            "SELECT r.pid FROM workers d JOIN workers r ON d.ended = 'reaped by ' || r.id"
            " WHERE d.pid = %s"
        )
        pid: int = await self.stack.value(question, process.pid)
        return pid

    async def wait_until_exited(self, process: Service) -> None:
        """Waits until a process that was declared dead has noticed that and exited."""
        self.stack.forget(process)
        await until(lambda: not process.running(), 20)
        assert process.exit_code() == 70, (
            f"{process.name} ended with {process.exit_code()}\n{process.tail()}"
        )

    async def assert_works(self, web: int = 0) -> None:
        """Checks that a new response completes."""
        answer = await self.stack.api(web).create(self.fake.script(reply("fine")), background=False)
        assert answer["output_text"] == "fine"

    def heal(self) -> None:
        """Ends the faults of all proxies."""
        for proxies in self.stack.proxies():
            for proxy in (proxies.postgres, proxies.redis, proxies.upstream):
                proxy.heal()

    async def restore(self) -> None:
        """Ends all faults and replaces processes that have died."""
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
        """Sets the outcome, unless it is set already."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


class Matrix:
    """Runs the selected cells and keeps the outcome of each."""

    def __init__(
        self,
        victims: list[Victim],
        selected: set[str],
        database_server: Databases,
        suite_settings: SuiteSettings,
        fake: FakeUpstream,
    ) -> None:
        self._suite_settings = suite_settings
        self._database_server = database_server
        self._fake = fake
        self._results = {
            name: _CellResult() for victim in victims for name in victim.cells if name in selected
        }
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._starting = asyncio.Lock()
        self._victims = [
            victim for victim in victims if any(name in selected for name in victim.cells)
        ]

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[None]:
        """Runs the cells while the context is open."""
        runs = []
        for number, victim in enumerate(self._victims):
            victim_folder = folder / f"{number}-{victim.name}"
            victim_folder.mkdir()
            runs.append(asyncio.create_task(self._run(victim, victim_folder)))
        try:
            yield
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def result(self, name: str) -> None:
        """Waits for this cell; raises what it raised."""
        await self._results[name].ended.wait()
        error = self._results[name].error
        if error is not None:
            raise error

    async def _run(self, victim: Victim, folder: Path) -> None:
        cells = {name: cell for name, cell in victim.cells.items() if name in self._results}
        try:
            async with self._slots, AsyncExitStack() as context:
                async with self._starting:
                    lab = await self._open(context, victim, folder)
                for name, cell in cells.items():
                    await self._run_cell(lab, name, cell)
        except BaseException as error:
            for name in cells:
                self._results[name].end(error)
            raise

    async def _open(self, context: AsyncExitStack, victim: Victim, folder: Path) -> Lab:
        """The victim's deployment; it closes with `context`."""
        database_server = self._database_server
        if victim.own_postgres:
            database_server = await context.enter_async_context(
                databases(folder / "pg", self._suite_settings)
            )
        options: dict[str, Any] = {
            "webs": 2,
            "workers": 2,
            "proxied": True,
            "signed": True,
            "allowed_tracebacks": SERVER_TRACEBACKS,
            **victim.stack_options,
        }
        options["settings"] = {**victim.leases, **options.get("settings", {})}
        running = await context.enter_async_context(
            stack(folder, database_server, self._suite_settings, self._fake, **options)
        )
        return Lab(running, self._fake, database_server, options["webs"], options["workers"])

    async def _run_cell(self, lab: Lab, name: str, cell: Cell) -> None:
        outcome = self._results[name]
        started = time.monotonic()
        error = None
        try:
            async with asyncio.timeout(CELL_TIMEOUT):
                await cell(lab)
        except Exception as fault:  # noqa: BLE001  # raised by the test of this cell
            error = fault
        seconds = time.monotonic() - started
        print(f"{time.strftime('%H:%M:%S')} {seconds:5.1f} s  {name} {error!r:.200}")
        outcome.end(error)
        await lab.restore()
