"""What is measured: this product, and beside it the raw chain, on the same servers."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg

from bench import raw_chain
from bench.cpu import CpuMeter, cpu_seconds
from bench.deployment import START_TIMEOUT, Cluster, cluster
from bench.figures import Row
from bench.http_client import Client
from bench.load import Load
from bench.profiling import Profiler
from cli import ROOT
from cli.embedded.process import ServerProcess, free_port

_COUNT_OPEN = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
_POLL = 0.01
"""Seconds between two questions how many responses are open."""

Database = psycopg.AsyncConnection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class System:
    """A running system with `POST /v1/responses`."""

    client: Client
    pids: dict[str, int]
    """`web` and `worker`; only `web` if there is no worker"""
    shared_pids: dict[str, int]
    """of the servers that both systems use"""
    count_open: Callable[[], Awaitable[int]]
    """how many responses have not ended"""

    def meter(self) -> CpuMeter:
        """Measures the CPU time of all processes of the system from now on."""
        pids = {**self.pids, **self.shared_pids}
        return CpuMeter({name: [pid] for name, pid in pids.items()})

    async def until_ended(self) -> None:
        """Waits until no response is open."""
        async with asyncio.timeout(600):
            while await self.count_open():  # noqa: ASYNC110
                await asyncio.sleep(_POLL)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Ours and the raw chain, with the upstream that both call."""

    ours: System
    raw: System
    upstream: Client
    upstream_pid: int
    noop: Client
    """A route of the same framework that does nothing."""
    database: Database
    cluster: Cluster

    def load_seconds(self) -> float:
        """CPU seconds of the load and of the upstream so far: not ours, but of the same cores."""
        return time.process_time() + cpu_seconds([self.upstream_pid])

    async def until_idle(self) -> None:
        """Stops the raw chain's streams, and waits until nothing is open anywhere.

        A client that has left ends its response in ours; the raw chain does not notice.
        """
        await self.raw.client.json("POST", "/stop")
        await self.ours.until_ended()
        async with asyncio.timeout(60):
            while (await self.upstream.json("GET", "/open"))["open"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def side_by_side(folder: Path, *, workers: bool = True) -> AsyncIterator[SideBySide]:
    """Starts everything in `folder`: one web process and, with `workers`, one worker of each
    system."""
    logs = folder / "logs"
    async with AsyncExitStack() as stack:
        upstream = stack.enter_context(Module("bench.paced_upstream", logs))
        noop = stack.enter_context(Module("bench.noop_application", logs))
        servers = await stack.enter_async_context(cluster(folder, f"{upstream.url}/v1"))
        database = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(servers.dsn, autocommit=True)
        )
        await database.execute("SET enable_seqscan = off")
        await database.execute(raw_chain.CREATE_TABLE)
        urls = (servers.postgres.url, servers.valkey.url)
        front = stack.enter_context(Module("bench.raw_chain.front", logs, *urls))
        raw_pids, our_pids = {"web": front.pid}, dict[str, int]()
        modules = [upstream, noop, front]
        if workers:
            raw_worker = Module("bench.raw_chain.worker", logs, *urls, upstream.url)
            raw_pids["worker"] = stack.enter_context(raw_worker).pid
            modules.append(raw_worker)
        [web], our_workers = await servers.start(webs=1, workers=int(workers), streams=2000)
        our_pids["web"] = web.pid
        if workers:
            our_pids["worker"] = our_workers[0].pid
        await until_ready(*modules)
        shared = {"Postgres": servers.postgres.pid, "Redis": servers.valkey.pid}
        ours = stack.enter_context(Client(web.port, servers.key))
        raw = stack.enter_context(Client(front.port))
        yield SideBySide(
            ours=System(ours, our_pids, shared, lambda: _count_open(database)),
            raw=System(raw, raw_pids, shared, lambda: _count_open_raw(raw)),
            upstream=stack.enter_context(Client(upstream.port)),
            upstream_pid=upstream.pid,
            noop=stack.enter_context(Client(noop.port)),
            database=database,
            cluster=servers,
        )


Measurement = Callable[[SideBySide, Load], Awaitable[list[Row]]]


async def run_measurements(
    measurements: Sequence[Measurement], folder: Path, load: Load, profiler: Profiler
) -> AsyncIterator[Row]:
    """Runs one measurement after another on the same deployment."""
    async with side_by_side(folder) as systems:
        for measure in measurements:
            with profiler.recording(measure.__name__, systems.ours.pids):
                rows = await measure(systems, load)
            for row in rows:
                yield row


async def _count_open(database: Database) -> int:
    row = await (await database.execute(_COUNT_OPEN)).fetchone()
    assert row is not None
    return int(str(row[0]))


async def _count_open_raw(client: Client) -> int:
    return int((await client.json("GET", "/open"))["open"])


class Module(ServerProcess):
    """A module of this package that runs as a process; its first argument is its port."""

    stop_signal = signal.SIGKILL
    """It stores nothing, and would wait for connections that are open."""

    def __init__(self, name: str, logs: Path, *arguments: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", name, str(self.port), *arguments]
        environment = {"LC_ALL": "C", "PYTHONPATH": str(ROOT)}
        log = logs / f"{name}.log"
        super().__init__(name, log, command, environment=environment)
        self.directory = ROOT

    def __enter__(self) -> Self:
        """Launches it; `until_ready` waits. So several can start at the same time."""
        self.launch()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


async def until_ready(*modules: Module) -> None:
    """Waits until all of them answer. Raises CommandFailed if one has ended."""
    async with asyncio.timeout(START_TIMEOUT):
        for module in modules:
            while not module.is_ready():
                if not module.running():
                    raise module.failure("ended while starting")
                await asyncio.sleep(0.02)
