"""The deployment of a campaign: its processes are watched and started again, as by a supervisor."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from cli.embedded.valkey import Valkey
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.chaos.audit.case import Violation
from tests.chaos.audit.events import EventLedger
from tests.chaos.audit.record import Fault, FaultKind, ReceivedEvent, WorkerLifetime
from tests.chaos.campaign.errands.run import RETENTION
from tests.chaos.campaign.wires import Injectors, RedisProxies
from tests.support import keys
from tests.support.api import until
from tests.support.chaos.recording_client import RecordedClients
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream
from tests.support.projects import short_retention_key
from tests.support.stack import Databases, Service, Stack, SuiteSettings, databases, stack
from tests.support.standby import Standby
from tests.support.webhook_receiver import WebhookReceiver

_DELIVERED_WITHIN = 45.0
"""Seconds after the last round in which all events arrive: longer than the lease of a delivery
whose worker died."""
MACHINES = 2
"""Each has a web process and a worker."""
STREAMS = 100
"""Slots of a worker."""
FEW_STREAMS = 6
"""The same where the order of what waits is judged."""


class Deployment:
    """Two machines and a quarantine worker, with servers of their own."""

    def __init__(
        self,
        running: Stack,
        postgres: Postgres,
        seed: int,
        receiver: WebhookReceiver,
        standby: Standby | None = None,
    ) -> None:
        """`seed`: of the injectors. `receiver`: of the webhooks of all its clients' project."""
        assert running.valkey is not None
        self.stack = running
        self.postgres = postgres
        self.standby = standby
        self.receiver = receiver
        self.ledger = EventLedger()
        self.admin_key = self.short_key = ""
        """May read the usage; of the project with a short retention."""
        self.valkey: Valkey = running.valkey
        self.injectors = Injectors(running.dsn, seed)
        self.redis_proxies = RedisProxies(running.redis_url)
        self.problems: list[str] = []
        """What a supervisor would report."""
        self.frozen: set[str] = set()
        """Names of the processes that are frozen now."""
        self.quarantine: set[str] = set()
        """Names of the quarantine workers."""
        self.streams = STREAMS
        self._machines: dict[str, int] = {}
        """The number of the machine of each process, by name; the quarantine worker has none."""
        self._clients: RecordedClients | None = None
        self._lifetimes: dict[str, WorkerLifetime | None] = {}
        """By name of each worker that claims; None while no clients record."""
        self._tasks: set[asyncio.Task[None]] = set()
        running.postgres_proxy_for = self.injectors.before
        running.redis_proxy_for = self.redis_proxies.before

    async def open(self) -> None:
        """Starts all processes and watches them."""
        for machine in range(MACHINES):
            self._machines[self.stack.spawn_web().name] = machine
            self._machines[self._spawn_worker().name] = machine
        self._spawn_worker(quarantine=True)
        self._start(self._watch())
        await self.wait_until_healthy()
        dsn = self.stack.dsn
        grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
        # Not on this thread: the proxies run here.
        self.admin_key = await asyncio.to_thread(keys.create, dsn, "default", grant=grant)
        self.short_key = await asyncio.to_thread(short_retention_key, self.stack, RETENTION)
        self.receiver.hooks.clear()
        body = {"name": "campaign", "url": self.receiver.url}
        made = await self.stack.api().call("POST", "/webhook_endpoints", body)
        assert made.status == 200, made.raw

    async def close(self) -> None:
        """Stops watching; no process stays frozen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in [*self.stack.webs, *self.stack.workers]:
            if process.name in self.frozen and process.running():
                process.resume()
        self.injectors.set_rate(0)

    async def wait_until_healthy(self) -> None:
        """Waits until all processes run and all servers answer."""
        await until(self._is_healthy, 120, every=0.05)

    # --- the record ---

    def events(self) -> list[ReceivedEvent]:
        """The events of webhooks so far."""
        bodies = [(hook.id, json.loads(hook.body)) for hook in self.receiver.hooks]
        return [ReceivedEvent(name, body["type"], body["data"]["id"]) for name, body in bodies]

    async def check_events(self) -> list[Violation]:
        """Waits until each event has arrived, but not for ever; judges all of them."""
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.ledger.missing(self.events()), _DELIVERED_WITHIN)
        return list(self.ledger.check(self.events()))

    def record_to(self, clients: RecordedClients | None) -> None:
        """Records faults and lifetimes with these clients from now on."""
        self._clients = clients
        for name in self._lifetimes:
            self._lifetimes[name] = None if clients is None else clients.record_worker(name)

    def record_fault(self, what: FaultKind, target: str) -> Fault:
        """Records that this fault begins now; set `end` when it is undone."""
        if self._clients is None:  # between two rounds there is no record
            return Fault(what, target, time.monotonic())
        return self._clients.record_fault(what, target)

    # --- the processes ---

    def forget(self, process: Service) -> None:
        """Takes a process that ends out of the deployment."""
        self.stack.forget(process)
        self.frozen.discard(process.name)
        lifetime = self._lifetimes.pop(process.name, None)
        if lifetime is not None:
            lifetime.end = time.monotonic()

    def replace(self, process: Service) -> None:
        """Starts a successor of the same kind on the same machine."""
        if process.port is not None:
            successor = self.stack.spawn_web(process.port)
        else:
            successor = self._spawn_worker(quarantine=process.name in self.quarantine)
        if process.name in self._machines:
            self._machines[successor.name] = self._machines[process.name]

    def fail_over_to(self, standby: Standby) -> None:
        """Leads all connections to the standby from now on."""
        self.injectors.redirect(standby.port)
        self.stack.dsn = self.stack.dsn.replace(f":{self.postgres.port}/", f":{standby.port}/")
        self.postgres = standby

    def processes_on(self, machine: int) -> list[Service]:
        """The processes of a machine."""
        processes = [*self.stack.webs, *self.stack.workers]
        return [one for one in processes if self._machines.get(one.name) == machine]

    def _spawn_worker(self, *, quarantine: bool = False) -> Service:
        process = self.stack.spawn_worker(streams=self.streams, quarantine=quarantine)
        if quarantine:
            self.quarantine.add(process.name)
        else:
            self._start(self._record_start(process))
        return process

    async def _record_start(self, process: Service) -> None:
        await until(lambda: self._is_claiming(process), 120, every=0.1)
        if process.running():
            self._lifetimes[process.name] = (
                None if self._clients is None else self._clients.record_worker(process.name)
            )

    async def _is_claiming(self, process: Service) -> bool:
        """Returns whether it is registered; true also if it has ended, which `_watch` notices."""
        if not process.running():
            return True
        question = "SELECT count(*) FROM workers WHERE pid = %s AND NOT dead"
        with contextlib.suppress(psycopg.OperationalError):
            return bool(await self.stack.value(question, process.pid) == 1)
        return False

    async def _is_healthy(self) -> bool:
        workers = self.stack.workers
        if (
            len(self.stack.webs) < MACHINES
            or len(workers) <= MACHINES
            or sum(process.name in self._lifetimes for process in workers) < MACHINES
        ):
            return False
        if not all([await self._is_claiming(process) for process in workers]):
            return False
        return all([await self._is_ready(web) for web in self.stack.webs])

    async def _is_ready(self, web: Service) -> bool:
        try:
            async with self.stack.session.get(f"http://127.0.0.1:{web.port}/readyz") as answer:
                status: int = answer.status
                return status == 200
        except OSError:  # the base of aiohttp's connection errors
            return False

    async def _watch(self) -> None:
        """Records and replaces each process that ends without a request."""
        while True:
            for process in [*self.stack.webs, *self.stack.workers]:
                if not process.running():
                    self.record_fault("exited", process.name)
                    self.forget(process)
                    self.replace(process)
            await asyncio.sleep(0.05)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_folders = itertools.count(1)


@asynccontextmanager
async def _standby(
    folder: Path, shared: Databases, *, exists: bool
) -> AsyncIterator[tuple[Databases, Standby | None]]:
    """With a standby: a primary of its own, and the standby. Otherwise the shared server."""
    if not exists:
        yield shared, None
        return
    settings = SuiteSettings(database_url=None, redis_url=None)
    async with databases(folder / "primary", settings) as own:
        assert own.server is not None
        standby = Standby(
            folder / "standby" / "data", folder / "standby", own.server, port=free_port()
        )
        await asyncio.to_thread(standby.start)
        try:
            yield own, standby
        finally:
            await asyncio.to_thread(standby.stop)


@asynccontextmanager
async def open_deployment(
    folder: Path,
    database_server: Databases,
    fake: FakeUpstream,
    settings: dict[str, str],
    seed: int,
    receiver: WebhookReceiver,
    *,
    has_standby: bool = False,
    is_crowded: bool = False,
) -> AsyncIterator[Deployment]:
    """A new, healthy deployment in a new folder inside `folder`. `is_crowded`: with few slots."""
    own_folder = folder / f"deployment-{next(_folders)}"
    own_folder.mkdir(parents=True)
    suite_settings = SuiteSettings(database_url=None, redis_url=None)
    deployment: Deployment | None = None
    try:
        async with (
            _standby(own_folder, database_server, exists=has_standby) as (own_databases, standby),
            stack(
                own_folder,
                own_databases,
                suite_settings,
                fake,
                webs=0,
                workers=0,
                settings=settings,
                signed=True,
                allowed_tracebacks=SERVER_TRACEBACKS,
            ) as running,
        ):
            assert own_databases.server is not None
            deployment = Deployment(running, own_databases.server, seed, receiver, standby)
            deployment.streams = FEW_STREAMS if is_crowded else STREAMS
            try:
                await deployment.open()
                yield deployment
            finally:
                await deployment.close()
    finally:
        if deployment is not None:
            await deployment.injectors.close()
            await deployment.redis_proxies.close()
