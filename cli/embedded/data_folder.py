"""The folder a single-machine stack lives in: where it is, who holds it, which ports it uses."""

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
from cli.embedded.process import Process, ServerProcess, StartFailed, end_orphan, free_port
from cli.embedded.unprivileged_user import make_substitute_folder, reachable
from cli.settings import ROOT


def default_folder() -> Path:
    """`.data` in the checkout; as root in a checkout that PostgreSQL's user cannot reach, a folder of its own."""
    if os.geteuid() == 0 and not reachable(ROOT):
        return make_substitute_folder(ROOT)
    return ROOT / ".data"


def embedded_database(folder: Path) -> str:
    """The address of the database that `up` runs in this folder; StartFailed where none was made yet."""
    try:
        port = json.loads((folder / "ports.json").read_text())["postgres"]
        stored = Credentials(**json.loads((folder / "credentials.json").read_text()))
    except FileNotFoundError:
        raise StartFailed(
            f"there is no database in {folder}: set DATABASE_URL, or start `up` first"
        ) from None
    return Postgres(
        folder / "postgres", folder / "logs", port=port, password=stored.database_password
    ).url


class DataFolder:
    """A data folder held by this process, from entering to leaving the context.

    Its lock file says which process holds it and which children it started, so a successor can end what a kill left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self._lock = -1

    def __enter__(self) -> Self:
        """Raises StartFailed naming the holder when there is one."""
        # PostgreSQL's user, when that is not us, must be able to pass; every file with a secret is 0600 by itself
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            self.path.mkdir(mode, parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartFailed(
                f"the data folder {self.path} cannot be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._lock)
            raise StartFailed(
                f"another `up` (process {holder}) is running on {self.path}"
            ) from None
        self._kill_leftovers()
        self.record([])
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")
        os.close(self._lock)

    def record(self, children: Sequence[Process]) -> None:
        """Note who holds the folder and the children; servers have files of their own for that, and gentler ends than SIGKILL."""
        named = {
            child.pid: " ".join(child.command[1:])
            for child in children
            if not isinstance(child, ServerProcess)
        }
        self._write(json.dumps({"pid": os.getpid(), "children": named}) + "\n")

    def credentials(self, api_key: str | None) -> Credentials:
        return load_or_create(self.path / "credentials.json", api_key)

    def ports(self, names: Sequence[str], fixed: dict[str, int], host: str) -> dict[str, int]:
        """A port for each name, written to `ports.json`: the fixed one, else the last start's, else any that is free.

        `host` is where `web` listens; everything else listens on the loopback.
        """
        file = self.path / "ports.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        ports = {
            name: fixed.get(name)
            or free_port(host if name == "web" else "127.0.0.1", before.get(name))
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
        """The holder writes its number right after it took the lock: give it a moment."""
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
        for pid, mark in json.loads(text)["children"].items():
            if not end_orphan(int(pid), mark, [signal.SIGKILL]):
                raise StartFailed(f"process {pid} ({mark}), left by a killed `up`, does not end")
