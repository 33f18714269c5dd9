"""The data folder of a single-machine stack: its place, its lock, its ports."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cli.embedded.credentials import Credentials, load_or_create, write_private
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, ServerProcess, end_orphan, free_port
from cli.embedded.unprivileged_user import make_substitute_folder, reachable
from cli.errors import CommandFailed
from cli.settings import ROOT


def default_folder() -> Path:
    """`.data` in the checkout; a folder in /var/tmp if root runs `up` and `nobody` cannot reach
    `.data`."""
    if os.geteuid() == 0 and not reachable(ROOT):
        return make_substitute_folder(ROOT)
    return ROOT / ".data"


def embedded_database(folder: Path) -> str:
    """The address of the database that `up` runs in this folder. Raises CommandFailed if there
    is none."""
    try:
        port = json.loads((folder / "ports.json").read_text())["postgres"]
        stored = Credentials(**json.loads((folder / "credentials.json").read_text()))
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no database in {folder}: set DATABASE_URL, or start `up` first"
        ) from None
    return Postgres(
        folder / "postgres", folder / "logs", port=port, password=stored.database_password
    ).url


class DataFolder:
    """A data folder that this process locks while the context is open.

    The lock file names the process and its children, so that the next start can end the children
    of a killed process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self._lock = -1

    def __enter__(self) -> Self:
        """Raises CommandFailed with the process that holds the lock."""
        # as root, PostgreSQL runs as another user and must pass; files with secrets are 0600
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            self.path.mkdir(mode, parents=True, exist_ok=True)
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

        Servers are left out: their pid files name them, and they must not be ended by SIGKILL.
        """
        commands = {
            child.pid: " ".join(child.command[1:])
            for child in children
            if not isinstance(child, ServerProcess)
        }
        self._write(json.dumps({"pid": os.getpid(), "children": commands}) + "\n")

    def credentials(self, api_key: str | None) -> Credentials:
        return load_or_create(self.path / "credentials.json", api_key)

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
        write_private(file, json.dumps(ports, indent=2) + "\n")
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
