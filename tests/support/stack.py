"""Deployments: servers, a migrated database, web and worker processes."""

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import openai
import psycopg
import redis.asyncio
from psycopg import sql
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, free_port
from cli.embedded.valkey import Valkey
from models import keys
from models.db.sync import set_search_path
from tests.support.api import Api, until
from tests.support.chaos.proxy import ProcessProxies, Proxy
from tests.support.fake_upstream import FakeUpstream
from tests.support.fork_server import MODULES, Launch, fork_server
from tests.support.process_logs import tails, tracebacks

ROOT = Path(__file__).parents[2]
DEFAULT_STREAMS = 200
"""Slots of a worker, without those for foreground responses alone."""
SHORT_LEASES = {
    "BACKBURNER_LEASE__DURATION": "3",
    "BACKBURNER_LEASE__BEAT": "0.5",
    "BACKBURNER_LEASE__CAUTION": "1.5",
    "BACKBURNER_LEASE__OBSERVE": "1",
    "BACKBURNER_LEASE__SWEEP": "0.5",
    "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "1",
}
"""Shorter leases, for tests that do not check the default times."""


class SuiteSettings(BaseSettings):
    """Settings of the tests, from the environment."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    database_url: str | None = None
    redis_url: str | None = None
    recordings: Path = Field(
        default=ROOT.parent / "shared" / "upstream-recordings",
        validation_alias="BACKBURNER_RECORDINGS",
    )
    require_recordings: bool = Field(
        default=False, validation_alias="BACKBURNER_REQUIRE_RECORDINGS"
    )
    require_browser: bool = Field(default=False, validation_alias="BACKBURNER_REQUIRE_BROWSER")


def _with_path(url: str, name: str) -> str:
    """Returns the URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _child_environment() -> dict[str, str]:
    """Our environment without variables that configure the product, its clients or a proxy."""
    stray = ("BACKBURNER_", "OPENAI_", "PG", "CELERY_")
    # The processes need PATH and the like; the settings are removed.
    ours = os.environ.items()  # noqa: TID251
    return {
        name: value
        for name, value in ours
        if not name.upper().startswith(stray)
        and not name.lower().endswith("_proxy")
        and name not in ("DATABASE_URL", "REDIS_URL")
    }


@dataclass(slots=True)
class Databases:
    """A PostgreSQL server and a database migrated by Alembic, from which each stack gets a copy."""

    admin_url: str
    server: Postgres | None
    """None: DATABASE_URL names the server, and it is not stopped."""
    template: str = field(default_factory=lambda: f"backburner_test_{secrets.token_hex(4)}")
    _copies: list[str] = field(default_factory=list)

    async def prepare(self) -> None:
        """Creates and migrates the template."""
        if self.server is not None:
            # The machine runs on in all tests: the kernel keeps what a killed server has written.
            for setting in ("fsync", "full_page_writes"):
                await self._run(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.SQL(setting)))
            await self._run(sql.SQL("SELECT pg_reload_conf()").format())
        await self._run(
            sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(
                sql.Identifier(self.template)
            )
        )
        await asyncio.to_thread(migrate, _with_path(self.admin_url, self.template))

    async def create_copy(self) -> str:
        """Returns the URL of a new, migrated, empty database. Sessions of tests find its tables
        without a schema."""
        name = f"{self.template}_{len(self._copies)}"
        self._copies.append(name)
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(self.template)
        )
        await self._run(copy)
        if self.server is None:
            # The user of our own server has the name of the schema.
            path = sql.SQL("ALTER DATABASE {} SET search_path = backburner, public")
            await self._run(path.format(sql.Identifier(name)))
        return _with_path(self.admin_url, name)

    async def drop(self) -> None:
        """Drops the template and its copies."""
        for name in [*self._copies, self.template]:
            await self._run(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    async def _run(self, statement: sql.Composed) -> None:
        async with await psycopg.AsyncConnection.connect(
            self.admin_url, autocommit=True
        ) as connection:
            await connection.execute(statement)


@asynccontextmanager
async def databases(folder: Path, suite_settings: SuiteSettings) -> AsyncIterator[Databases]:
    """The server that DATABASE_URL names, or a server in `folder`, stopped at the end."""
    if suite_settings.database_url is not None:
        _, _, rest = suite_settings.database_url.partition("://")
        server_databases = Databases(f"postgresql://{rest}", None)
        try:
            await server_databases.prepare()
            yield server_databases
        finally:
            await server_databases.drop()
        return
    server = Postgres(
        folder / "postgres", folder / "logs", port=free_port(), password=secrets.token_hex(8)
    )
    # Not on this thread: the proxies of other deployments run here.
    await asyncio.to_thread(server.start)
    try:
        server_databases = Databases(server.url, server)
        await server_databases.prepare()
        yield server_databases
    finally:
        await asyncio.to_thread(server.stop)


class Service(Process):
    """A web or worker process."""

    def __init__(
        self,
        name: str,
        log: Path,
        module: str,
        *arguments: str,
        environment: dict[str, str],
        port: int | None = None,
        proxies: ProcessProxies | None = None,
    ) -> None:
        """Prepares `python -m <module> <arguments>`.

        It ends at the latest with the test process.
        """
        self.module, self.arguments = module, list(arguments)
        super().__init__(
            name, log, [sys.executable, "-m", module, *arguments], environment=environment
        )
        self.directory = ROOT
        self.port = port
        self._proxies = proxies

    def launch(self) -> None:
        """Starts it and returns at once. On Linux it is forked (tests/support/fork_server.py)."""
        if sys.platform != "linux":
            super().launch()
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        launch = Launch(
            self.module,
            self.arguments,
            self.environment,
            str(self.log),
            str(self.directory),
            self.name,
        )
        product = self.module if self.module in MODULES else ""
        self._child = cast("subprocess.Popen[bytes]", fork_server(ROOT, product).launch(launch))

    @property
    def proxies(self) -> ProcessProxies:
        """The proxies between it and the servers, in a stack that is `proxied`."""
        assert self._proxies is not None
        return self._proxies

    def pause(self) -> None:
        """Sends SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def stop_cleanly(self, within: float = 20) -> None:
        """Sends SIGTERM and checks that it ends within `within` seconds with a good exit code."""
        self.request_stop()
        try:
            await until(lambda: not self.running(), within)
        except AssertionError:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {within} s of SIGTERM") from None
        # uvicorn closes everything and then ends by the signal that it received
        assert self.exit_code() in (0, -signal.SIGTERM), (
            f"{self.name} ended with {self.exit_code()}"
        )

    async def is_healthy(self, session: aiohttp.ClientSession) -> bool:
        """Whether a web process answers /healthz with 200.

        Raises AssertionError if it has ended.
        """
        assert self.running(), f"{self.name} ended:\n{self.tail()}"
        try:
            async with session.get(f"http://127.0.0.1:{self.port}/healthz") as answer:
                status: int = answer.status
                return status == 200
        except aiohttp.ClientConnectionError:
            return False

    def tail(self, size: int = 6000, after: int = 0) -> str:
        """The end of its log: at most `size` bytes, none before the offset `after`."""
        return self.log.read_bytes()[after:][-size:].decode(errors="replace")


@dataclass(slots=True, repr=False)
class Stack:
    """One deployment: a database, a Redis, the fake upstream, and any number of processes.

    Without a repr of its fields, as FakeUpstream.
    """

    folder: Path
    dsn: str
    redis_url: str
    valkey: Valkey | None
    """None: REDIS_URL names the Redis, and it is not stopped."""
    fake: FakeUpstream
    session: aiohttp.ClientSession
    settings: dict[str, str]
    allowed_tracebacks: tuple[str, ...] = ()
    """A traceback in a log fails the test, unless it contains one of these texts."""
    key: str = field(default_factory=lambda: f"bb-test-{secrets.token_urlsafe(24)}")
    webs: list[Service] = field(default_factory=list)
    workers: list[Service] = field(default_factory=list)
    started: list[Service] = field(default_factory=list)
    """All processes that were started, in order; also those that have ended."""
    proxied: bool = False
    """Each process reaches Postgres, Redis and the upstream through separate proxies."""
    signed: bool = False
    """Each process' upstream key ends in `/<its name>`, so that the upstream's log names it."""
    postgres_proxy_for: Callable[[str], Proxy] | None = None
    """Makes the proxy between Postgres and the process of this name."""
    redis_proxy_for: Callable[[str], Proxy] | None = None
    """Makes the proxy between Redis and the process of this name."""
    _clients: list[openai.AsyncOpenAI] = field(default_factory=list)
    _connection: psycopg.AsyncConnection[Any] | None = None
    _querying: asyncio.Lock = field(default_factory=asyncio.Lock)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def environment(self, proxies: ProcessProxies | None = None, label: str = "") -> dict[str, str]:
        """The environment of the product's processes."""
        return {
            **_child_environment(),
            # Tests measure memory. root may look into each process.
            "BACKBURNER_DEBUGGABLE": str(os.getuid() != 0).lower(),
            "DATABASE_URL": proxies.postgres.url(self.dsn) if proxies else self.dsn,
            "REDIS_URL": proxies.redis.url(self.redis_url) if proxies else self.redis_url,
            "BACKBURNER_UPSTREAM__BASE_URL": proxies.upstream.url(self.fake.base_url)
            if proxies
            else self.fake.base_url,
            "BACKBURNER_UPSTREAM__API_KEY": f"upstream-secret/{label}"
            if self.signed
            else "upstream-secret",
            "BACKBURNER_CONFIG": "",
            "BACKBURNER_FILES__FOLDER": str(self.folder / "files"),
            "PYTHONUNBUFFERED": "1",
            **self.settings,
        }

    def _start(self, name: str, module: str, *arguments: str, port: int | None = None) -> Service:
        label = f"{name}-{next(self._numbers)}"
        wires = (
            ProcessProxies.before(self.dsn, self.redis_url, self.fake.base_url)
            if self.proxied
            else None
        )
        environment = self.environment(wires, label)
        if self.postgres_proxy_for is not None:
            environment["DATABASE_URL"] = self.postgres_proxy_for(label).url(self.dsn)
        if self.redis_proxy_for is not None:
            environment["REDIS_URL"] = self.redis_proxy_for(label).url(self.redis_url)
        process = Service(
            label,
            self.folder / f"{label}.log",
            module,
            *arguments,
            environment=environment,
            port=port,
            proxies=wires,
        )
        process.launch()
        self.started.append(process)
        return process

    def spawn_web(self, port: int | None = None) -> Service:
        """Starts a web process without waiting for it."""
        port = port or free_port()
        process = self._start("web", "web", "--host", "127.0.0.1", "--port", str(port), port=port)
        self.webs.append(process)
        return process

    async def start_web(self, port: int | None = None) -> Service:
        """Starts a web process and waits until it answers; `webs` has it only then."""
        process = self.spawn_web(port)
        self.webs.remove(process)
        try:
            await until(lambda: process.is_healthy(self.session), 60)
        finally:
            self.webs.append(process)
        return process

    def spawn_worker(self, *, streams: int = DEFAULT_STREAMS, quarantine: bool = False) -> Service:
        """Starts a worker process without waiting for it."""
        if quarantine:
            process = self._start("quarantine", "worker", "--quarantine")
        else:
            process = self._start("worker", "worker", "--streams", str(streams))
        self.workers.append(process)
        return process

    def spawn_faulty_worker(self, fault: str) -> Service:
        """Starts a worker that has a bug (tests/support/chaos/faulty_worker.py)."""
        process = self._start("worker", "tests.support.chaos.faulty_worker", fault)
        self.workers.append(process)
        return process

    async def start_worker(
        self, *, streams: int = DEFAULT_STREAMS, quarantine: bool = False
    ) -> Service:
        """Starts a worker process and waits until it claims."""
        process = self.spawn_worker(streams=streams, quarantine=quarantine)
        await self.wait_until_claiming(process)
        return process

    async def wait_until_claiming(self, process: Service) -> None:
        """Waits until this worker has a live row in `workers`."""
        question = b"SELECT 1 FROM workers WHERE pid = %s AND kind <> 'web' AND NOT dead"
        async with await self._connect() as connection:

            async def is_claiming() -> bool:
                assert process.running(), f"{process.name} ended:\n{process.tail()}"
                return (await connection.execute(question, [process.pid])).rowcount == 1

            await until(is_claiming, 60)

    async def readyz(self, web: int = 0) -> dict[str, Any]:
        """The body of /readyz."""
        async with self.session.get(f"http://127.0.0.1:{self.webs[web].port}/readyz") as answer:
            assert answer.status == 200, await answer.text()
            report: dict[str, Any] = await answer.json()
            return report

    async def value(self, query: str, *values: object) -> Any:
        """Runs a query on the database; returns the first column of the first row, or None.

        One connection serves all queries: opening one costs the server more than most of them.
        """
        async with self._querying:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect()
            with contextlib.suppress(psycopg.OperationalError):
                return await _first_value(self._connection, query, values)
            # Either the query failed, or the connection was lost: PostgreSQL may have restarted.
            await self._connection.close()
            self._connection = await self._connect()
            return await _first_value(self._connection, query, values)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        await connection.execute(set_search_path())
        return connection

    def redis(self) -> redis.asyncio.Redis:
        """A client of the stack's Redis; the caller closes it."""
        client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(self.redis_url)
        return client

    def api(self, web: "int | Service" = 0, *, key: str | None = None) -> Api:
        """A raw client of one web process."""
        process = self.webs[web] if isinstance(web, int) else web
        return Api(
            f"http://127.0.0.1:{process.port}/v1", self.key if key is None else key, self.session
        )

    def openai(self, web: int = 0, *, key: str | None = None) -> openai.AsyncOpenAI:
        """The official client, without retries."""
        url = f"http://127.0.0.1:{self.webs[web].port}/v1"
        client = openai.AsyncOpenAI(
            base_url=url, api_key=key or self.key, max_retries=0, timeout=60
        )
        self._clients.append(client)
        return client

    def proxies(self) -> list[ProcessProxies]:
        """The proxies of all processes that were started."""
        return [process.proxies for process in self.started] if self.proxied else []

    def kill(self, process: Service) -> None:
        """Sends SIGKILL and waits."""
        self.forget(process)
        process.kill()

    async def stop(self, process: Service) -> None:
        """Sends SIGTERM and waits for a clean end."""
        self.forget(process)
        await process.stop_cleanly()

    def forget(self, process: Service) -> None:
        """Removes it from the processes that must be running at the end."""
        for processes in (self.webs, self.workers):
            if process in processes:
                processes.remove(process)

    async def close(self) -> None:
        """Stops everything cleanly; fails if a process had ended or a log has a traceback."""
        for client in self._clients:
            await client.close()
        if self._connection is not None:
            await self._connection.close()
        running = [*self.webs, *self.workers]
        died = [process.name for process in running if not process.running()]
        results = await asyncio.gather(
            *(process.stop_cleanly() for process in running if process.running()),
            return_exceptions=True,
        )
        for process in running:
            process.kill()
        faults = [str(result) for result in results if isinstance(result, BaseException)]
        assert not faults, f"{faults}\n{tails(self.started, 1500)}"
        assert not died, f"{died} died during the tests\n{tails(self.started, 1500)}"
        assert not (tracebacks := self.tracebacks()), "\n".join(tracebacks[:5])

    def tracebacks(self) -> list[str]:
        """The tracebacks in the logs of all its processes that are not allowed."""
        return tracebacks(self.started, self.allowed_tracebacks)


_redis_numbers = itertools.cycle(range(1, 16))
"""Numbers of databases on the Redis that REDIS_URL names: each stack uses another one."""

RUNNING_STACKS: list[Stack] = []
"""The stacks of the session and of the running test. A failing test shows their logs."""


async def _first_value(
    connection: psycopg.AsyncConnection[Any], query: str, values: Sequence[object]
) -> Any:
    row = await (await connection.execute(query.encode(), values)).fetchone()
    return None if row is None else row[0]


class StackOptions(TypedDict, total=False):
    """What a deployment can have beside the defaults: one web process, one worker of 200 slots."""

    webs: int
    workers: int
    streams: int
    """Slots of a worker."""
    quarantine: bool
    """Also starts a quarantine worker."""
    allowed_tracebacks: tuple[str, ...]
    settings: dict[str, str]
    """Variables of the environment, by name."""
    proxied: bool
    signed: bool


@asynccontextmanager
async def stack(
    folder: Path,
    server_databases: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    **options: Unpack[StackOptions],
) -> AsyncIterator[Stack]:
    """A deployment with a database and a Redis of its own, ready to serve; stopped and checked at
    the end.
    """
    async with (
        _redis_server(folder, suite_settings) as (redis_url, valkey),
        _client_session() as session,
    ):
        one = Stack(
            folder,
            await server_databases.create_copy(),
            redis_url,
            valkey,
            fake,
            session,
            options.get("settings", {}),
            options.get("allowed_tracebacks", ()),
            proxied=options.get("proxied", False),
            signed=options.get("signed", False),
        )
        keys.bootstrap(one.dsn, one.key)
        RUNNING_STACKS.append(one)  # until the test is reported
        try:
            await _start_processes(one, options)
            yield one
        except BaseException:
            for process in one.started:
                process.kill()
            raise
        else:
            await one.close()
        finally:
            await asyncio.gather(*(proxies.close() for proxies in one.proxies()))


async def _start_processes(one: Stack, options: StackOptions) -> None:
    """Returns when every web process answers and every worker claims."""
    streams = options.get("streams", DEFAULT_STREAMS)
    spawned = [one.spawn_worker(streams=streams) for _ in range(options.get("workers", 1))]
    if options.get("quarantine"):
        spawned.append(one.spawn_worker(quarantine=True))
    await asyncio.gather(*(one.start_web() for _ in range(options.get("webs", 1))))
    await asyncio.gather(*(one.wait_until_claiming(process) for process in spawned))


@asynccontextmanager
async def _redis_server(
    folder: Path, suite_settings: SuiteSettings
) -> AsyncIterator[tuple[str, Valkey | None]]:
    """The URL of a database on REDIS_URL's server, or a server in `folder`, stopped at the end."""
    if suite_settings.redis_url is not None:
        yield _with_path(suite_settings.redis_url, str(next(_redis_numbers))), None
        return
    valkey = Valkey(folder / "valkey", folder, port=free_port(), password=secrets.token_hex(8))
    valkey.start()
    try:
        yield valkey.url, valkey
    finally:
        valkey.stop()


def _client_session() -> aiohttp.ClientSession:
    """A session without limits. It uses no connection twice: tests kill web processes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=110),
    )
