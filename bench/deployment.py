"""A deployment for one benchmark: PostgreSQL, Valkey, web processes and workers."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cli import ROOT
from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, free_port, stop_together
from cli.embedded.stack import RegisteredWorkers
from cli.embedded.valkey import Valkey
from models import keys

START_TIMEOUT = 60.0
"""Seconds from the launch of web and worker until both serve."""


class Web(Process):
    """A web process."""

    def __init__(self, name: str, logs: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        arguments = ["--host", "127.0.0.1", "--port", str(self.port)]
        command = [sys.executable, "-m", "web", *arguments]
        super().__init__(name, logs / f"{name}.log", command, environment=environment)
        self.directory = ROOT

    def session(self, key: str) -> aiohttp.ClientSession:
        """A client without limits, which the caller closes. `key`: an API key."""
        return aiohttp.ClientSession(
            f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )


class Worker(Process):
    """A worker."""

    def __init__(self, name: str, logs: Path, environment: dict[str, str], streams: int) -> None:
        command = [sys.executable, "-m", "worker", "--streams", str(streams)]
        super().__init__(name, logs / f"{name}.log", command, environment=environment)
        self.directory = ROOT


class Cluster:
    """PostgreSQL, Valkey, and any number of web processes and workers."""

    def __init__(
        self,
        postgres: Postgres,
        valkey: Valkey,
        logs: Path,
        key: str,
        settings: Mapping[str, str],
    ) -> None:
        """`settings`: the environment variables of all processes, beside the servers' addresses."""
        self.key = key
        self.dsn = postgres.url
        self.postgres = postgres
        self.valkey = valkey
        self._logs = logs
        self._environment = _environment(postgres.url, valkey.url, settings)
        self._registered = RegisteredWorkers(postgres.url)
        self._processes: list[Process] = []

    async def start(
        self, *, webs: int = 0, workers: int = 0, streams: int = 200
    ) -> tuple[list[Web], list[Worker]]:
        """Starts so many processes, and waits until they serve. `streams`: of each worker."""
        first = len(self._processes)
        new_webs = [
            Web(f"web-{first + number}", self._logs, self._environment) for number in range(webs)
        ]
        new_workers = [
            Worker(f"worker-{first + webs + number}", self._logs, self._environment, streams)
            for number in range(workers)
        ]
        started: list[Process] = [*new_webs, *new_workers]
        self._processes += started
        for process in started:
            process.launch()
        pids = [process.pid for process in started]
        async with AsyncExitStack() as clients:
            sessions = [
                await clients.enter_async_context(web.session(self.key)) for web in new_webs
            ]
            deadline = time.monotonic() + START_TIMEOUT
            while not self._registered.has_all(pids) or not await _are_ready(sessions):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"web and worker did not serve within {START_TIMEOUT:g} s")
                await asyncio.sleep(0.1)
        return new_webs, new_workers

    def stop(self) -> None:
        """Stops all processes."""
        stop_together([process for process in self._processes if process.running()])
        self._registered.close()


@asynccontextmanager
async def cluster(
    folder: Path, upstream: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Cluster]:
    """Starts the servers in `folder`; `upstream` is the base URL that runs the models. `settings`:
    environment variables; all others have their defaults."""
    logs = folder / "logs"
    password, key = secrets.token_hex(16), keys.new_key()
    with (
        Postgres(folder / "postgres", logs, port=free_port(), password=password) as postgres,
        Valkey(folder / "valkey", logs, port=free_port(), password=password) as valkey,
    ):
        migrate(postgres.url)
        keys.bootstrap(postgres.url, key)
        all_settings = {"BACKBURNER_UPSTREAM__BASE_URL": upstream, **(settings or {})}
        started = Cluster(postgres, valkey, logs, key, all_settings)
        try:
            yield started
        finally:
            started.stop()


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running deployment of one web process and one worker, and a client of it."""

    session: aiohttp.ClientSession
    web: Web
    worker: Worker

    @property
    def pids(self) -> dict[str, int]:
        """`web` and `worker`."""
        return {"web": self.web.pid, "worker": self.worker.pid}

    async def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON body of a successful reply. `path` is below `/v1/`."""
        async with self.session.request(method, f"/v1/{path}", json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()


@asynccontextmanager
async def deployment(folder: Path, upstream: str) -> AsyncIterator[Deployment]:
    """Starts everything in `folder`; `upstream` is the base URL that runs the models."""
    async with cluster(folder, upstream) as started:
        [web], [worker] = await started.start(webs=1, workers=1)
        async with web.session(started.key) as session:
            yield Deployment(session, web, worker)


def _environment(database_url: str, redis_url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment without the settings of another deployment, and the settings of this one."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  (children need PATH and the like)
        if not name.startswith(("BACKBURNER_", "OPENAI_", "PG"))
    }
    return inherited | {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "BACKBURNER_CONFIG": "",
        "BACKBURNER_DEBUGGABLE": "true",  # memory is measured, and py-spy attaches
        **settings,
    }


async def _are_ready(webs: list[aiohttp.ClientSession]) -> bool:
    """Whether each web process of these clients is ready."""
    try:
        for web in webs:
            async with web.get("/readyz") as reply:
                if reply.status != 200:
                    return False
    except aiohttp.ClientConnectionError:
        return False
    return True
