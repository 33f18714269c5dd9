"""The processes of one server: their settings, and the order in which they start and stop."""

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from cli import ROOT
from cli.embedded.data_folder import DataFolder
from cli.embedded.detached import is_ready
from cli.embedded.postgres import Postgres
from cli.embedded.process import (
    Process,
    ServerProcess,
    StopSignal,
    Supervisor,
    stop_together,
    wait_for_port,
)
from cli.embedded.valkey import Valkey
from cli.errors import CommandFailed
from cli.output import print_progress
from cli.settings import UP_DEFAULTS, StackSettings, child_settings, secret_value
from models import keys
from models.config.addresses import DEFAULT_SCHEMA
from models.config.config_file import PATH_VARIABLE, find_config_file
from models.config.settings import Settings
from models.confinement.policy import missing
from models.console_links import LOGIN_PATH, create_link
from models.db.database import fetch_sync
from models.db.queries.leases import LIVE_PIDS, NOW
from models.db.sync import set_search_path
from models.features import FEATURES
from models.hosts import is_loopback

READY_TIMEOUT = 60.0
"""Longest time in seconds from the launch of web and workers until they serve."""
_FOR_INSTALLERS = ("HOME", "LANG", "PATH", "TMPDIR", "PIP_", "SSL_", "REQUESTS_CA_BUNDLE")
"""Beginnings of the variables that the sandbox inherits: it has no others, because it runs foreign
code. It installs packages with pip."""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Options:
    """The command line of `up`."""

    port: int
    """The port to listen on; 0 picks a free one."""
    host: str
    data: Path | None
    streams: int
    """Responses that one worker process runs at the same time."""
    workers: int
    upstream: str | None
    """The upstream's base URL, with `/v1`."""
    database_url: str | None = None
    redis_url: str | None = None
    """Addresses of servers to use instead of own ones; `env`: those of DATABASE_URL and
    REDIS_URL."""


class RegisteredWorkers:
    """The workers that registered since this object was made: a worker registers when it can claim.

    Older rows are ignored: a killed worker has a valid lease until it expires.
    """

    def __init__(self, dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
        """`dsn` is the libpq URL (`postgresql://…`) of a migrated database, `schema` the setting
        `database_schema`."""
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(set_search_path(schema))
        self._opened_at = fetch_sync(self._connection, NOW, {})[0]

    def has_all(self, pids: Sequence[int]) -> bool:
        """Whether all these processes are registered and have a valid lease."""
        wanted = {"pids": list(pids), "since": self._opened_at}
        return set(fetch_sync(self._connection, LIVE_PIDS, wanted)) == set(pids)

    def close(self) -> None:
        self._connection.close()


class Stack:
    """One server on this machine.

    It starts no PostgreSQL and no Valkey if the settings name one, and no demo upstream if an
    upstream is configured. The command line has become part of the settings
    (cli/embedded/up.py).
    """

    def __init__(self, options: Options, settings: StackSettings, folder: DataFolder) -> None:
        self._options = options
        self._settings = settings
        self._folder = folder
        self._credentials = folder.credentials(
            secret_value(settings.bootstrap_key) or keys.new_key(settings.cell)
        )
        self.api_key = secret_value(settings.bootstrap_key) or self._credentials.api_key
        self.has_upstream = bool(settings.upstream.base_url or settings.upstreams)
        self.supervisor = Supervisor(folder.record)
        self._servers: list[Process] = []
        self._web: list[Process] = []
        self._workers: list[Process] = []
        if options.port and not wait_for_port(options.host, options.port, 1.0):
            raise CommandFailed(
                f"port {options.port} on {options.host} is in use; "
                "name another with --port, or 0 for any"
            )
        self.console_url: str | None = None
        """The console with a link that logs in once; None: this server has no console."""
        self._ports = folder.ports(
            ["web", "postgres", "valkey", "demo", "sandbox"], {"web": options.port}, options.host
        )
        self._code_token = secrets.token_urlsafe(24)

    @property
    def base_url(self) -> str:
        """The base URL for clients on this machine, ending in `/v1`."""
        return f"{self._address}/v1"

    @property
    def host(self) -> str:
        """The address that web listens on."""
        return self._options.host

    @property
    def _address(self) -> str:
        host = self._client_host()
        return f"http://{f'[{host}]' if ':' in host else host}:{self._ports['web']}"

    @property
    def upstream_address(self) -> str:
        """The base URL of the upstream named `default`: the configured one, else the demo."""
        if self.has_upstream:
            return self._settings.upstream.base_url
        return f"http://127.0.0.1:{self._ports['demo']}/v1"

    def start(self, stop: StopSignal) -> None:
        """Starts everything; returns when web serves and all workers claim.

        Web and workers import their modules while the databases start. The quarantine worker starts
        at the end: it has nothing to do before a response's workers have crashed twice, and its
        imports would delay the others. Raises CommandFailed or Stopped.
        """
        if not self.has_upstream:
            self._launch(
                self._servers,
                "demo-upstream",
                "cli.demo_upstream",
                "--host",
                "127.0.0.1",
                "--port",
                str(self._ports["demo"]),
            )
        servers = self._own_servers()
        settings = self._settings_with(servers)
        self._launch_applications(settings)
        # Not at the top: it takes a third of a second, in which the others import their modules.
        from cli.database.migrate import migrate

        for server in servers.values():
            self._start_server(server, stop)
        check_redis(settings.redis_url.get_secret_value())
        print_progress("Preparing the database.")
        schema = settings.database_schema
        migrate(settings.dsn, stop.pause, schema)
        try:
            keys.bootstrap(settings.dsn, self.api_key, schema)
            if is_loopback(self._options.host) or settings.console.has_login:
                self.console_url = f"{self._address}{LOGIN_PATH}{create_link(settings.dsn, schema)}"
            with closing(RegisteredWorkers(settings.dsn, schema)) as registered:
                print_progress("Starting web and workers.")
                for process in [*self._web, *self._workers]:
                    process.release()
                self._wait_until_ready(registered, stop)
            self._launch_worker("worker-quarantine", "--quarantine", settings, is_held=False)
            if runs_sandbox(settings):
                self._launch_sandbox(settings)
        except psycopg.Error as error:
            raise CommandFailed(
                f"the database failed while starting: {str(error).splitlines()[0]}"
            ) from error

    def stop(self) -> None:
        """Stops web and workers first, which may still write to the databases and read the demo."""
        stop_together([*self._web, *self._workers])
        stop_together(self._servers)

    def _own_servers(self) -> dict[str, Postgres | Valkey]:
        """The databases whose addresses are not set, not started, by the setting of the address."""
        path, logs = self._folder.path, self._folder.logs
        servers: dict[str, Postgres | Valkey] = {}
        if secret_value(self._settings.database_url) is None:
            servers["database_url"] = Postgres(
                path / "postgres",
                logs,
                port=self._ports["postgres"],
                password=self._credentials.database_password,
            )
        if secret_value(self._settings.redis_url) is None:
            servers["redis_url"] = Valkey(
                path / "valkey",
                logs,
                port=self._ports["valkey"],
                password=self._credentials.redis_password,
            )
        return servers

    def _settings_with(self, servers: Mapping[str, Postgres | Valkey]) -> Settings:
        """The settings of web and workers, which use these servers and the configured ones."""
        configured = {
            "database_url": secret_value(self._settings.database_url) or "",
            "redis_url": secret_value(self._settings.redis_url) or "",
        }
        own = {name: server.url for name, server in servers.items()}
        return child_settings(**configured | own)

    def _start_server(self, server: ServerProcess, stop: StopSignal) -> None:
        print_progress(f"Starting {server.name}.")
        server.start(stop.pause)
        self._servers.append(server)
        self.supervisor.add(server)

    def _launch_applications(self, settings: Settings) -> None:
        """Launches web and workers, which begin their work when they are released."""
        self._launch(
            self._web,
            "web",
            "web",
            "--host",
            self._options.host,
            "--port",
            str(self._ports["web"]),
            settings_environment=self._environment(settings),
            is_held=True,
        )
        for number in range(1, self._options.workers + 1):
            name = "worker" if self._options.workers == 1 else f"worker-{number}"
            self._launch_worker(name, f"--streams={self._options.streams}", settings, is_held=True)

    def _launch_worker(self, name: str, option: str, settings: Settings, *, is_held: bool) -> None:
        environment = self._environment(settings)
        self._launch(
            self._workers,
            name,
            "worker",
            option,
            settings_environment=environment,
            is_held=is_held,
        )
        self._workers[-1].stop_timeout += settings.worker.longest_grace.total_seconds()

    def _launch_sandbox(self, settings: Settings) -> None:
        """It starts last too: before the first call of a tool it is not needed."""
        environment = {
            name: value
            for name, value in os.environ.items()  # noqa: TID251
            if name.startswith(_FOR_INSTALLERS) or name.lower() in _PROXIES
        }
        process = Process(
            "sandbox",
            self._folder.logs / "sandbox.log",
            [
                *(sys.executable, "-m", "cli.main", "sandbox"),
                *("--port", str(self._ports["sandbox"])),
                *("--folder", str(self._folder.path / "sandbox")),
                *("--venv", str(self._folder.path / "code-packages")),
            ],
            environment={
                **environment,
                "BACKBURNER_CODE__TOKEN": self._code_token,
                "BACKBURNER_CODE__ALLOWED_HOSTS": ",".join(settings.code.allowed_hosts),
            },
        )
        process.directory = ROOT
        process.launch()
        self._servers.append(process)
        self.supervisor.add(process)

    def _launch(
        self,
        group: list[Process],
        name: str,
        module: str,
        *arguments: str,
        settings_environment: dict[str, str] | None = None,
        is_held: bool = False,
    ) -> None:
        # the children inherit the environment: it may hold settings that `up` does not read
        environment = {
            **UP_DEFAULTS,
            **os.environ,  # noqa: TID251
            **(settings_environment or {}),
            "PYTHONUNBUFFERED": "1",
        }
        prepared = ["cli.embedded.prepared"] if is_held else []
        process = Process(
            name,
            self._folder.logs / f"{name}.log",
            [sys.executable, "-m", *prepared, module, *arguments],
            environment=environment,
        )
        process.directory = ROOT
        process.is_held = is_held
        process.launch()
        group.append(process)
        self.supervisor.add(process)

    def _environment(self, settings: Settings) -> dict[str, str]:
        """The settings of the children, in addition to the inherited environment."""
        environment = {
            "DATABASE_URL": settings.dsn,
            "REDIS_URL": settings.redis_url.get_secret_value(),
            "BACKBURNER_SECRET_KEYS": secret_value(self._settings.secret_keys)
            or self._credentials.sealing_key,
            "BACKBURNER_FILES__FOLDER": str(
                (settings.files.folder or self._folder.path / "files").absolute()
            ),
            # the children have another working directory
            PATH_VARIABLE: str(file.absolute()) if (file := find_config_file()) is not None else "",
        }
        if runs_sandbox(settings):
            environment |= {
                "BACKBURNER_CODE__SANDBOXES": f"http://127.0.0.1:{self._ports['sandbox']}",
                "BACKBURNER_CODE__TOKEN": self._code_token,
            }
        if self.has_upstream:
            return environment
        return environment | {
            "BACKBURNER_UPSTREAM__BASE_URL": self.upstream_address,
            "BACKBURNER_UPSTREAM__API_KEY": "demo",
        }

    def _wait_until_ready(self, registered: RegisteredWorkers, stop: StopSignal) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while not (
            is_ready(self.base_url) and registered.has_all([each.pid for each in self._workers])
        ):
            ended = self.supervisor.first_exited()
            if ended:
                raise ended.failure(f"ended with {ended.exit_code()} while starting")
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"web and workers were not ready after {READY_TIMEOUT:g} s; "
                    f"their logs are in {self._folder.logs}"
                )
            stop.pause(0.05)

    def _client_host(self) -> str:
        """The address for clients on this machine: the loopback if web listens on all
        interfaces."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._options.host, self._options.host)  # noqa: S104 - looked up, not bound


def runs_sandbox(settings: Settings) -> bool:
    """Whether `up` starts a sandbox: no other is configured, and the system can confine code."""
    return "code" in FEATURES and not settings.code.sandboxes and not missing()


def check_redis(url: str) -> None:
    """Raises CommandFailed if the server does not answer; workers would only be late otherwise."""
    if not url.startswith(("redis://", "rediss://", "unix://")):  # Sentinel: several servers
        return
    try:
        with closing(
            redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        ) as client:
            client.ping()
    except redis.RedisError as error:
        raise CommandFailed(f"the server of REDIS_URL did not answer: {error}") from error
