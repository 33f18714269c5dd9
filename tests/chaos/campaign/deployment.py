"""The deployment that a campaign ill-treats: its processes are watched and started again, as a supervisor would."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from cli.embedded.postgres import Postgres
from cli.embedded.valkey import Valkey
from tests.chaos.audit.record import Fault, FaultKind, WorkerLifetime
from tests.chaos.campaign.plan import PlannedFault
from tests.support.api import until
from tests.support.chaos.injector import Injector
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import Databases, Service, Stack, SuiteSettings, stack

WEBS, WORKERS = 2, 2
ALLOWED_TRACEBACKS = (
    "psycopg.",
    "psycopg_pool.",
    "redis.exceptions.",
    "kombu.exceptions.OperationalError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "BrokenPipeError",
)
"""What processes may log when their servers go away."""
_STOP_TIMEOUT = 25.0
"""Seconds a process gets to end after SIGTERM, on a busy machine."""


class Deployment:
    """Two web processes, two workers and a quarantine, with a Postgres and a Redis of their own."""

    def __init__(self, one: Stack, postgres: Postgres, seed: int) -> None:
        """`seed`: of the injector."""
        assert one.valkey is not None
        self.stack = one
        self.faults: list[str] = []
        """What a supervisor would complain about."""
        self._postgres = postgres
        self._valkey: Valkey = one.valkey
        self._seed = seed
        self._clients: RecordedClients | None = None
        self._injectors: list[Injector] = []
        self._rate = 0.0
        self._lifetimes: dict[str, WorkerLifetime | None] = {}
        """Workers that claim; None: no witness has noted it"""
        self._frozen: set[str] = set()
        self._quarantine: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server_locks = {"postgres": asyncio.Lock(), "redis": asyncio.Lock()}
        one.postgres_proxy_for = self._proxy_for

    # --- the processes ---

    async def open(self) -> None:
        """Start everything, and watch it."""
        for _ in range(WEBS):
            self.stack.spawn_web()
        for _ in range(WORKERS):
            self._spawn_worker()
        self._spawn_worker(quarantine=True)
        self._start(self._watch())
        await self.wait_until_healthy()

    async def close(self) -> None:
        """Stop watching; nothing stays frozen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in [*self.stack.webs, *self.stack.workers]:
            if process.name in self._frozen and process.running():
                process.resume()
        self._set_rate(0)

    async def close_proxies(self) -> None:
        """End the proxies, after the processes."""
        await asyncio.gather(*(injector.close() for injector in self._injectors))

    async def wait_until_healthy(self) -> None:
        """Wait until everything is there again."""
        await until(self._is_healthy, 120, every=0.05)

    def record_to(self, clients: RecordedClients | None) -> None:
        """From now on this witness is told what happens."""
        self._clients = clients
        for name in self._lifetimes:
            self._lifetimes[name] = None if clients is None else clients.record_worker(name)

    def _proxy_for(self, label: str) -> Injector:
        injector = Injector(self.stack.dsn, random.Random(f"{self._seed}/{label}"))
        injector.rate = self._rate
        self._injectors.append(injector)
        return injector

    def _spawn_worker(self, *, quarantine: bool = False) -> None:
        process = self.stack.spawn_worker(streams=100, quarantine=quarantine)
        if quarantine:
            self._quarantine.add(process.name)
        else:
            self._start(self._record_start(process))

    async def _record_start(self, process: Service) -> None:
        await until(lambda: self._claims(process), 120, every=0.1)
        if process.running():
            self._lifetimes[process.name] = (
                None if self._clients is None else self._clients.record_worker(process.name)
            )

    async def _claims(self, process: Service) -> bool:
        if not process.running():
            return True  # the watch sees to it
        with contextlib.suppress(psycopg.OperationalError):
            return bool(
                await self.stack.value(
                    "SELECT count(*) FROM workers WHERE pid = %s AND NOT dead", process.pid
                )
                == 1
            )
        return False

    async def _is_healthy(self) -> bool:
        there = self.stack.workers
        if (
            len(self.stack.webs) < WEBS
            or len(there) <= WORKERS
            or sum(process.name in self._lifetimes for process in there) < WORKERS
        ):
            return False
        if not all([await self._claims(process) for process in there]):
            return False
        return all([await self._is_ready(web) for web in self.stack.webs])

    async def _is_ready(self, web: Service) -> bool:
        try:
            async with self.stack.session.get(f"http://127.0.0.1:{web.port}/readyz") as answer:
                status: int = answer.status
                return status == 200
        except OSError:  # aiohttp's connection errors are
            return False

    async def _watch(self) -> None:
        """A process that ends by itself is written down and replaced."""
        while True:
            for process in [*self.stack.webs, *self.stack.workers]:
                if not process.running():
                    self._record_fault("died", process.name)
                    self._forget(process)
                    self._replace(process)
            await asyncio.sleep(0.05)

    def _forget(self, process: Service) -> None:
        self.stack.forget(process)
        self._frozen.discard(process.name)
        life = self._lifetimes.pop(process.name, None)
        if life is not None:
            life.end = time.monotonic()

    def _replace(self, process: Service) -> None:
        if process.port is not None:
            self.stack.spawn_web(process.port)
        else:
            self._spawn_worker(quarantine=process.name in self._quarantine)

    # --- the faults ---

    async def apply_fault(self, planned: PlannedFault) -> bool:
        """Do it, and undo it when its time is over. False: there was nobody it could be done to."""
        verb, target = planned.action.split(" ")[0], planned.action.split(" ")[-1]
        if planned.action == "injector":
            await self._inject(planned)
        elif planned.action == "double fault":
            await asyncio.gather(
                self._fault_server(planned, "crash", "postgres"),
                self._fault_process(planned, "kill", "worker"),
            )
        elif target in ("postgres", "redis"):
            await self._fault_server(planned, verb, target)
        else:
            return await self._fault_process(planned, verb, target)
        return True

    async def _fault_process(self, planned: PlannedFault, verb: str, target: str) -> bool:
        there = [
            process
            for process in self._targets(target)
            if process.running() and process.name not in self._frozen
        ]
        if not there:
            return False
        process = there[int(planned.target_share * len(there))]
        if verb == "freeze":
            await self._freeze(process, planned.duration)
            return True
        self._record_fault("killed" if verb == "kill" else "stopped", process.name)
        self._forget(process)
        if verb == "kill":
            process.kill()
        else:
            await self._stop(process)
        await asyncio.sleep(planned.duration)
        self._replace(process)
        return True

    def _targets(self, target: str) -> list[Service]:
        if target == "web":
            return self.stack.webs
        return [
            process
            for process in self.stack.workers
            if (process.name in self._quarantine) == (target == "quarantine")
        ]

    async def _freeze(self, process: Service, seconds: float) -> None:
        fault = self._record_fault("frozen", process.name)
        self._frozen.add(process.name)
        process.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            process.resume()
            fault.end = time.monotonic()
            self._frozen.discard(process.name)

    async def _stop(self, process: Service) -> None:
        process.request_stop()
        try:
            await until(lambda: not process.running(), _STOP_TIMEOUT)
        except AssertionError:
            self.faults.append(f"{process.name} did not stop within {_STOP_TIMEOUT} s of SIGTERM")
            process.kill()
        if process.exit_code() not in (0, -signal.SIGTERM, 70):
            self.faults.append(f"{process.name} ended with {process.exit_code()} after SIGTERM")

    async def _fault_server(self, planned: PlannedFault, verb: str, target: str) -> None:
        server = self._postgres if target == "postgres" else self._valkey
        async with self._server_locks[target]:
            if verb == "flush":
                client = self.stack.redis()
                fault = self._record_fault("flushed", target)
                await client.flushall()
                await client.aclose()
            elif verb == "hang":
                fault = self._record_fault("hung", target)
                os.kill(server.pid, signal.SIGSTOP)
                await asyncio.sleep(planned.duration)
                os.kill(server.pid, signal.SIGCONT)
            else:
                fault = self._record_fault("crashed" if verb == "crash" else "away", target)
                await asyncio.to_thread(server.stop if verb == "restart" else server.kill)
                await asyncio.sleep(planned.duration)
                await asyncio.to_thread(server.start)
            fault.end = time.monotonic()

    async def _inject(self, planned: PlannedFault) -> None:
        fault = self._record_fault("unclear", "postgres")
        self._set_rate(planned.rate)
        await asyncio.sleep(planned.duration)
        self._set_rate(0)
        fault.end = time.monotonic()

    def _set_rate(self, rate: float) -> None:
        self._rate = rate
        for injector in self._injectors:
            injector.rate = rate

    @property
    def injected(self) -> int:
        """How many statements the injectors have spoilt so far."""
        return sum(injector.answers_lost + injector.requests_lost for injector in self._injectors)

    def _record_fault(self, what: FaultKind, target: str) -> Fault:
        if self._clients is None:  # between two rounds nobody asks
            return Fault(what, target, time.monotonic())
        return self._clients.record_fault(what, target)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_folders = itertools.count(1)


@asynccontextmanager
async def deployment(
    folder: Path,
    database_server: Databases,
    fake: FakeUpstream,
    settings: dict[str, str],
    seed: int,
) -> AsyncIterator[Deployment]:
    """A house of its own in a new folder inside `folder`, whole; ended without questions."""
    assert database_server.server is not None
    place = folder / f"house-{next(_folders)}"
    place.mkdir(parents=True)
    suite_settings = SuiteSettings(database_url=None, redis_url=None)
    found: Deployment | None = None
    try:
        async with stack(
            place,
            database_server,
            suite_settings,
            fake,
            webs=0,
            workers=0,
            settings=settings,
            signed=True,
            allowed_tracebacks=ALLOWED_TRACEBACKS,
        ) as one:
            found = Deployment(one, database_server.server, seed)
            try:
                await found.open()
                yield found
            finally:
                await found.close()
    finally:
        if found is not None:
            await found.close_proxies()
