"""A stack without a terminal: `up --detach`, and `status`, `logs` and `down` for any `up`."""

import contextlib
import http.client
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import typer

from cli.embedded.data_folder import RunningUp, running_up
from cli.embedded.process import command_of
from cli.errors import CommandFailed

STOP_TIMEOUT = 120.0
"""Longest time in seconds that `down` waits for the end."""
_POLL_INTERVAL = 0.1
_FOLLOW_INTERVAL = 0.2
"""Seconds between two looks at the logs."""
_READY = b"1"


class Detachment:
    """In the child that runs the stack: the connection to the process that waits until it is
    ready."""

    def __init__(self, notification: int) -> None:
        """`notification`: the write end of a pipe that the waiting process reads."""
        self._notification = notification

    def complete(self, log: Path) -> None:
        """Lets the waiting process end with success. From now on nothing is printed on the
        terminal; standard error goes to `log`."""
        nothing = os.open(os.devnull, os.O_RDWR)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, sys.stdin), (nothing, sys.stdout), (file, sys.stderr)):
            os.dup2(source, target.fileno())
        os.close(nothing)
        os.close(file)
        os.write(self._notification, _READY)
        os.close(self._notification)


def detach(run: Callable[[Detachment], None]) -> int:
    """Forks a child in a session of its own, which calls `run`.

    Returns 0 when the child has called `complete`, else its exit status, which is not 0. Ctrl-C
    before that stops the child.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        os._exit(_exit_status(lambda: run(Detachment(writer))))
    os.close(writer)
    try:
        is_ready = os.read(reader, 1) == _READY
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return 128 + signal.SIGINT
    return 0 if is_ready else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1


def _exit_status(run: Callable[[], None]) -> int:
    """The exit status of a command. Its exceptions must not reach the code of the parent, which
    this process shares."""
    try:
        run()
    except typer.Exit as end:
        return end.exit_code
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process of a stack."""

    name: str
    pid: int
    running: bool
    log: str


@dataclass(frozen=True, slots=True)
class StackStatus:
    """What runs in a data folder. `ready`: web accepts requests."""

    data: str
    running: bool
    ready: bool
    pid: int | None
    base_url: str | None
    processes: list[ProcessStatus]


def status(folder: Path) -> StackStatus:
    """The state of the stack of this data folder."""
    up = running_up(folder)
    if up is None:
        return StackStatus(str(folder), False, False, None, None, [])
    processes = [
        ProcessStatus(each.name, each.pid, command_of(each.pid) != "", each.log)
        for each in up.processes
    ]
    ready = up.base_url is not None and is_ready(up.base_url)
    return StackStatus(str(folder), True, ready, up.pid, up.base_url, processes)


def is_ready(base_url: str) -> bool:
    """Whether the web process of this base URL accepts requests. It may not listen yet, or not any
    more."""
    address = urlsplit(base_url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    with closing(connection):
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def stop(folder: Path) -> RunningUp | None:
    """Stops the `up` of this data folder and waits for its end. None: there was none.

    Raises CommandFailed if it does not end.
    """
    up = running_up(folder)
    if up is None:
        return None
    try:
        os.kill(up.pid, signal.SIGTERM)
    except PermissionError as error:
        raise CommandFailed(f"process {up.pid} belongs to another user") from error
    except ProcessLookupError:
        return up  # it has ended meanwhile
    deadline = time.monotonic() + STOP_TIMEOUT
    while (now := running_up(folder)) is not None and now.pid == up.pid:
        if time.monotonic() > deadline:
            raise CommandFailed(f"process {up.pid} has not ended within {STOP_TIMEOUT:g} s")
        time.sleep(_POLL_INTERVAL)
    return up


class Log:
    """One log file, read from near its end on."""

    def __init__(self, path: Path, lines: int) -> None:
        """`lines`: how many of its last lines are read first."""
        self.name = path.stem
        self._path = path
        self._offset = _offset_of_last(path, lines)

    @classmethod
    def new(cls, path: Path) -> Self:
        """A file that was made while the others were followed."""
        log = cls(path, 0)
        log._offset = 0
        return log

    def read(self) -> list[str]:
        """The whole lines that were added since the last call."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0  # it was copied away and emptied (process.rotate)
            file.seek(self._offset)
            text, end, _ = file.read().rpartition(b"\n")
            self._offset += len(text) + len(end)
            return text.decode(errors="replace").split("\n") if end else []
        return []


def _offset_of_last(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin. Reads it backwards."""
    with path.open("rb") as file:
        start = end = file.seek(0, os.SEEK_END)
        data = b""
        while start > 0 and data.count(b"\n") <= lines:
            step = min(65536, start)
            start = file.seek(start - step)
            data = file.read(step) + data
    kept = data.split(b"\n")[-lines - 1 :]
    return end - len(b"\n".join(kept))


def log_lines(
    folder: Path, names: Sequence[str], lines: int, *, follow: bool
) -> Iterator[tuple[str, str]]:
    """(name, line): the last `lines` lines of each log, then, with `follow`, each line when it is
    written, without end.

    `names`: `web`, `worker` (all of them), …; none: all logs. Raises CommandFailed if there is no
    such log.
    """
    logs = {path: Log(path, lines) for path in _paths(folder, names)}
    if not logs:
        have = ", ".join(path.stem for path in _paths(folder, [])) or "none"
        wanted = f"no log {' or '.join(names)}" if names else "no log"
        raise CommandFailed(f"there is {wanted} in {folder / 'logs'}; there are: {have}")
    while True:
        for log in logs.values():
            for line in log.read():
                yield log.name, line
        if not follow:
            return
        time.sleep(_FOLLOW_INTERVAL)
        for path in _paths(folder, names):
            if path not in logs:
                logs[path] = Log.new(path)


def _paths(folder: Path, names: Sequence[str]) -> list[Path]:
    return [
        path
        for path in sorted((folder / "logs").glob("*.log"))
        if not names or any(path.stem == name or path.stem.startswith(f"{name}-") for name in names)
    ]
