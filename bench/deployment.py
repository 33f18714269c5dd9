"""A deployment for one benchmark: PostgreSQL, Valkey, one web process, one worker."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, free_port
from cli.embedded.registrations import RegisteredWorkers
from cli.embedded.valkey import Valkey
from cli.settings import ROOT
from models import keys

START_TIMEOUT = 60.0
"""Seconds from the launch of web and worker until both serve."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running deployment, and a client of it."""

    session: aiohttp.ClientSession
    worker: Process

    async def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON body of a successful reply. `path` is below `/v1/`."""
        async with self.session.request(method, f"/v1/{path}", json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()


@asynccontextmanager
async def deployment(folder: Path, upstream: str) -> AsyncIterator[Deployment]:
    """Starts everything in `folder`; `upstream` is the base URL that runs the models."""
    logs = folder / "logs"
    password, key = secrets.token_hex(16), keys.new_key()
    with (
        Postgres(folder / "postgres", logs, port=free_port(), password=password) as postgres,
        Valkey(folder / "valkey", logs, port=free_port(), password=password) as valkey,
    ):
        migrate(postgres.url)
        keys.bootstrap(postgres.url, key)
        environment = _environment(postgres.url, valkey.url, upstream)
        port = free_port()
        web = _process("web", logs, environment, "--host", "127.0.0.1", "--port", str(port))
        worker = _process("worker", logs, environment, "--streams", "200")
        session = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}
        )
        try:
            with closing(RegisteredWorkers(postgres.url)) as registered:
                web.launch()
                worker.launch()
                await _wait(session, lambda: registered.has_all([worker.pid]))
            yield Deployment(session, worker)
        finally:
            await session.close()
            web.stop()
            worker.stop()


def _process(name: str, logs: Path, environment: dict[str, str], *arguments: str) -> Process:
    command = [sys.executable, "-m", name, *arguments]
    process = Process(name, logs / f"{name}.log", command, environment=environment)
    process.directory = ROOT
    return process


def _environment(database_url: str, redis_url: str, upstream: str) -> dict[str, str]:
    """The environment without the settings of another deployment, and the settings of this one."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  (children need PATH and the like)
        if not name.startswith(("BACKBURNER_", "OPENAI_", "PG"))
    }
    return inherited | {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "BACKBURNER_UPSTREAM__BASE_URL": upstream,
        "BACKBURNER_CONFIG": "",
    }


async def _wait(session: aiohttp.ClientSession, worker_is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not (worker_is_ready() and await _web_is_ready(session)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"web and worker did not serve within {START_TIMEOUT:g} s")
        await asyncio.sleep(0.1)


async def _web_is_ready(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/readyz") as reply:
            return reply.status == 200
    except aiohttp.ClientConnectionError:
        return False
