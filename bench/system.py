"""What is measured: this product, and beside it the raw chain, on the same servers."""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench import raw_chain
from bench.cpu import CpuMeter
from bench.deployment import Cluster, Worker, cluster
from bench.http_client import Client
from cli.embedded.process import ServerProcess, free_port
from cli.settings import ROOT

_COUNT_ENDED = "SELECT count(*) FROM responses WHERE status NOT IN ('queued', 'in_progress')"
_COUNT_ENDED_RAW = "SELECT count(*) FROM raw_jobs WHERE status = 'completed'"

Database = psycopg.AsyncConnection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class System:
    """A running system with `POST /v1/responses`."""

    client: Client
    cpu_groups: dict[str, list[int]]
    """the pids of each kind of process"""
    count_ended: str
    """SQL: how many responses have ended"""

    def meter(self) -> CpuMeter:
        """Measures the CPU time of all processes of the system from now on."""
        return CpuMeter(self.cpu_groups)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Ours and the raw chain, with the upstream that both call."""

    ours: System
    raw: System
    upstream: Client
    noop: Client
    """A route of the same framework that does nothing."""
    database: Database
    cluster: Cluster
    worker: Worker
    """the first worker of ours"""


@asynccontextmanager
async def side_by_side(folder: Path, streams: int = 2000) -> AsyncIterator[SideBySide]:
    """Starts everything in `folder`: one web process and one worker of each system. `streams`: of
    our worker."""
    logs = folder / "logs"
    async with AsyncExitStack() as stack:
        upstream = stack.enter_context(_module("bench.paced_upstream", logs))
        noop = stack.enter_context(_module("bench.noop_application", logs))
        servers = await stack.enter_async_context(cluster(folder, f"{upstream.url}/v1"))
        database = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(servers.dsn, autocommit=True)
        )
        await database.execute(raw_chain.CREATE_TABLE)
        urls = (servers.postgres.url, servers.valkey.url)
        front = stack.enter_context(_module("bench.raw_chain.front", logs, *urls))
        raw_worker = stack.enter_context(
            _module("bench.raw_chain.worker", logs, *urls, upstream.url)
        )
        [web], [worker] = await servers.start(webs=1, workers=1, streams=streams)
        shared = {"Postgres": [servers.postgres.pid], "Redis": [servers.valkey.pid]}
        yield SideBySide(
            ours=System(
                stack.enter_context(Client(web.port, servers.key)),
                {"web": [web.pid], "worker": [worker.pid], **shared},
                _COUNT_ENDED,
            ),
            raw=System(
                stack.enter_context(Client(front.port)),
                {"web": [front.pid], "worker": [raw_worker.pid], **shared},
                _COUNT_ENDED_RAW,
            ),
            upstream=stack.enter_context(Client(upstream.port)),
            noop=stack.enter_context(Client(noop.port)),
            database=database,
            cluster=servers,
            worker=worker,
        )


class _Module(ServerProcess):
    """A module of this package that runs as a process."""

    def __init__(self, name: str, logs: Path, arguments: tuple[str, ...]) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", name, str(self.port), *arguments]
        environment = {"LC_ALL": "C", "PYTHONPATH": str(ROOT)}
        log = logs / f"{name}.log"
        super().__init__(name, log, command, environment=environment)
        self.directory = ROOT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _module(name: str, logs: Path, *arguments: str) -> _Module:
    return _Module(name, logs, arguments)
