"""The data folder of a single-machine stack: its place, its lock, its ports, its secrets."""

import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from cli import ROOT, is_checkout
from cli.embedded.process import (
    Process,
    ServerProcess,
    end_orphan,
    free_port,
    port_is_free,
)
from cli.embedded.unprivileged_user import make_substitute_folder, reachable
from cli.errors import CommandFailed
from models import keys
from models.config.addresses import normalise_database_url


@dataclass(frozen=True)
class Credentials:
    """The content of `credentials.json`: made once."""

    api_key: str
    database_password: str
    redis_password: str
    sealing_key: str
    """32 bytes, URL-safe base64 without padding."""


def default_folder() -> Path:
    """`.data` in the checkout, `~/.local/share/backburner` of an installed wheel; a folder in
    /var/tmp if root runs `up` and `nobody` cannot reach it."""
    parent = ROOT if is_checkout() else Path.home()
    if os.geteuid() == 0 and not reachable(parent):
        return make_substitute_folder(parent)
    return parent / (".data" if is_checkout() else ".local/share/backburner")


def database_of(folder: Path) -> str:
    """The address of the database of the `up` that runs in this folder, else of the one that `up`
    has made there. Raises CommandFailed if there is none, or if it does not run."""
    from cli.embedded.postgres import Postgres  # it imports psycopg

    running = running_up(folder)
    if running is not None and running.database_url is not None:
        return normalise_database_url(running.database_url)
    port, stored = _port_and_credentials(folder, "postgres")
    if port_is_free("127.0.0.1", port):
        raise CommandFailed(f"`up` does not run in {folder}: start it with `{_up(folder)}`")
    return Postgres(
        folder / "postgres", folder / "logs", port=port, password=stored.database_password
    ).url


def _up(folder: Path) -> str:
    """The command that starts `up` in this folder."""
    program = "./dev up" if is_checkout() else "backburner up"
    return program if folder == default_folder() else f"{program} --data {folder}"


def redis_of(folder: Path) -> str:
    """The address of the Redis of the `up` that runs in this folder, else of the one that `up` has
    made there. Raises CommandFailed if there is none."""
    from cli.embedded.valkey import Valkey  # it imports redis

    running = running_up(folder)
    if running is not None and running.redis_url is not None:
        return running.redis_url
    port, stored = _port_and_credentials(folder, "valkey")
    return Valkey(folder / "valkey", folder / "logs", port=port, password=stored.redis_password).url


def _port_and_credentials(folder: Path, server: str) -> tuple[int, Credentials]:
    try:
        port = json.loads((folder / "ports.json").read_text())[server]
        return port, Credentials(**json.loads((folder / "credentials.json").read_text()))
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no database in {folder}: set DATABASE_URL, or start `up` first"
        ) from None


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """A process that `up` has launched. `log`: the path of its log."""

    name: str
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class RunningUp:
    """The `up` that holds a data folder. `base_url`: None while it starts."""

    pid: int
    base_url: str | None
    processes: list[RecordedProcess]
    upstream: str | None
    """The base URL of its upstream named `default`; None while it starts."""
    database_url: str | None = field(repr=False)
    redis_url: str | None = field(repr=False)
    """The addresses of servers that it uses and has not started."""


def running_up(folder: Path) -> RunningUp | None:
    """The `up` that runs in this data folder; None if none does."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CommandFailed(f"the data folder {folder} cannot be read: {error.strerror}") from error
    try:
        text = os.pread(lock, 1 << 20, 0).decode()
        if not text.endswith("\n") or not _is_locked(lock):
            return None
    finally:
        os.close(lock)
    record = json.loads(text)
    # a process of an earlier version does not write all of it
    processes = [RecordedProcess(**each) for each in record.get("processes", [])]
    return RunningUp(
        pid=record["pid"],
        base_url=record.get("base_url"),
        processes=processes,
        upstream=record.get("upstream"),
        database_url=record.get("database_url"),
        redis_url=record.get("redis_url"),
    )


def _is_locked(lock: int) -> bool:
    """Whether another process has locked the file; after a kill it names one that has ended."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class DataFolder:
    """A data folder that this process locks while the context is open.

    The lock file names the process and its children, so that the next start can end the children
    of a killed process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.base_url: str | None = None
        """Where web listens; recorded for `status`."""
        self.upstream: str | None = None
        """The upstream named `default`; recorded for `upstream check`."""
        self.database_url: str | None = None
        self.redis_url: str | None = None
        """Servers that it uses and has not started; recorded for the commands of an operator."""
        self._lock = -1

    def __enter__(self) -> Self:
        """Raises CommandFailed with the process that holds the lock."""
        # as root, PostgreSQL runs as another user and must pass; files with secrets are 0600
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            self.path.mkdir(mode, parents=True, exist_ok=True)
            self.logs.mkdir(0o700, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CommandFailed(
                f"the data folder {self.path} cannot be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._lock)
            raise CommandFailed(
                f"another `up` (process {holder}) is running on {self.path}"
            ) from None
        self._kill_leftovers()
        self.record([])
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")
        os.close(self._lock)

    def record(self, children: Sequence[Process]) -> None:
        """Writes this process and its children to the lock file.

        `children` are ended by SIGKILL if this process is killed. Servers are not among them: their
        pid files name them.
        """
        commands = {
            child.pid: " ".join(child.command[1:])
            for child in children
            if not isinstance(child, ServerProcess)
        }
        processes = [
            {"name": child.name, "pid": child.pid, "log": str(child.log)} for child in children
        ]
        record = {
            "pid": os.getpid(),
            "base_url": self.base_url,
            "upstream": self.upstream,
            "database_url": self.database_url,
            "redis_url": self.redis_url,
            "children": commands,
            "processes": processes,
        }
        self._write(json.dumps(record) + "\n")

    def credentials(self, api_key: str | None) -> Credentials:
        return load_credentials(self.path / "credentials.json", api_key)

    def ports(self, names: Sequence[str], fixed: dict[str, int], host: str) -> dict[str, int]:
        """A port for each name: the fixed one, else the one of the last start, else a free one.

        They are written to `ports.json`. `web` listens on `host`, everything else on the loopback.
        """
        file = self.path / "ports.json"
        previous = json.loads(file.read_text()) if file.exists() else {}
        ports = {
            name: fixed.get(name)
            or free_port(host if name == "web" else "127.0.0.1", previous.get(name))
            for name in names
        }
        _write_private(file, json.dumps(ports, indent=2) + "\n")
        return ports

    def _write(self, text: str) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text.encode(), 0)

    def _read(self) -> str:
        return os.pread(self._lock, 1 << 20, 0).decode()

    def _holder(self) -> str:
        """The pid in the lock file. Waits up to 1 s, because the holder writes it after it has
        locked."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            text = self._read()
            if text.endswith("\n"):
                return str(json.loads(text)["pid"])
            time.sleep(0.02)
        return "unknown"

    def _kill_leftovers(self) -> None:
        text = self._read()
        if not text.endswith("\n"):  # a clean end, or the first start
            return
        for pid, command in json.loads(text)["children"].items():
            if not end_orphan(int(pid), command, [signal.SIGKILL]):
                raise CommandFailed(
                    f"process {pid} ({command}), left by a killed `up`, does not end"
                )


def load_credentials(path: Path, api_key: str | None) -> Credentials:
    """The stored credentials, else new ones, which are stored with mode 0600.

    `api_key` is the API key of new credentials; None makes a random one. Raises CommandFailed if
    the file is damaged.
    """
    if path.exists():
        try:
            return Credentials(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise CommandFailed(
                f"{path} is damaged; restore it, or move the whole data folder away to "
                "start from nothing"
            ) from error
    credentials = Credentials(
        api_key=api_key or keys.new_key(),
        database_password=secrets.token_urlsafe(32),
        redis_password=secrets.token_urlsafe(32),
        sealing_key=secrets.token_urlsafe(32),
    )
    _write_private(path, json.dumps(asdict(credentials), indent=2) + "\n")
    return credentials


def _write_private(path: Path, text: str) -> None:
    """Replaces a file atomically, also across a power failure; only its owner can read it."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
