"""One child process: started on a leash, logged to a file, asked to stop, killed when it will not."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

LAUNCHER = Path(__file__).parent / "parent_death.py"

LOG_LIMIT = 32 * 1024 * 1024
"""Bytes after which a log is set aside as `<name>.log.1`; so a child's logs take at most about twice this."""

# Below the range from which Linux, macOS and the BSDs take local ports. A server that is down for a moment would otherwise find
# its port held by some client's outgoing connection, or by a client that, retrying, connected to itself.
PORTS = range(15000, 32000)


class StartFailed(Exception):
    """A process could not be started. The message is one sentence for the operator."""


@dataclass(frozen=True)
class User:
    """Whom a child runs as."""

    uid: int
    gid: int


class Process:
    """A program that runs until it is stopped. Not thread-safe.

    On Linux the child gets `death_signal` when the *thread* that launched it ends, so launch from one that stays.
    """

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL
    stop_timeout = 15.0
    """Seconds between the request to stop and SIGKILL."""

    def __init__(
        self,
        name: str,
        log: Path,
        command: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`log` gets both outputs. Without an `environment` the child sees only a C locale, in which programs speak English."""
        self.name = name
        self.log = log
        self.command = list(command)
        self.environment = {"LC_ALL": "C"} if environment is None else dict(environment)
        self.directory = Path("/")
        self.user: User | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the latest launch."""
        if self._child is None:
            raise LookupError(f"{self.name} was never launched")
        return self._child.pid

    def launch(self) -> None:
        """Start the program and return at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(self.log)
        user = (str(self.user.uid), str(self.user.gid)) if self.user else ("-", "-")
        leash = [
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            str(os.getpid()),
            str(int(self.death_signal)),
            *user,
        ]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*leash, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environment,
                # its own session: Ctrl-C in a terminal reaches us alone, and we stop the children in order
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """What the latest launch ended with (negative: the signal), or None while it runs or before there was one."""
        return None if self._child is None else self._child.poll()

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def request_stop(self) -> None:
        """Send the stop signal, if there is anything to send it to; does not wait."""
        if self._child is not None:
            self._child.send_signal(self.stop_signal)  # a no-op for one that has ended

    def wait_for_exit(self, seconds: float) -> None:
        """Wait until the process is gone; kill it after `seconds`."""
        if self._child is None:
            return
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> None:
        """Ask, wait, kill if need be. Returns when the process is gone; harmless when it was not running."""
        self.request_stop()
        self.wait_for_exit(self.stop_timeout)

    def kill(self) -> None:
        """`kill -9`, and return when the process is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def last_log_line(self) -> str:
        """The last line of the log that says something, for a sentence about why it failed."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def failure(self, what: str) -> StartFailed:
        """The sentence for a launch that came to nothing."""
        words = self.last_log_line()
        return StartFailed(
            f"{self.name} {what}{f' ({words})' if words else ''}; its log is {self.log}"
        )


class ServerProcess(Process):
    """A process that is ready when it answers."""

    def start(self, pause: Callable[[float], None] = time.sleep, *, within: float = 60.0) -> None:
        """Launch and return when it answers.

        `pause(seconds)` is called between looks and may raise to give up; `within` is in seconds, and long because a database
        may have much to recover after a crash. Raises StartFailed, with nothing left running.
        """
        self.launch()
        try:
            self._wait_until_ready(pause, time.monotonic() + within)
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self, pause: Callable[[float], None], deadline: float) -> None:
        while not self.is_ready():
            if not self.running():
                raise self.failure("ended while starting")
            if time.monotonic() > deadline:
                raise self.failure("did not answer in time")
            pause(0.02)

    def is_ready(self) -> bool:
        """Whether it serves already. May raise StartFailed when it never will."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def rotate(log: Path) -> None:
    """Set a log aside once it is over the limit.

    Copied and emptied, since a child holds the file open (for appending); a line written in between is lost.
    """
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def wait_for_port(host: str, port: int, seconds: float) -> bool:
    """Whether the port is free, now or soon: whoever had it may be just ending."""
    deadline = time.monotonic() + seconds
    while not port_is_free(host, port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return port_is_free(host, port)


def free_port(host: str = "127.0.0.1", preferred: int | None = None) -> int:
    """`preferred` if it is free on `host`, else any free one; nothing holds it for the caller."""
    if preferred is not None and port_is_free(host, preferred):
        return preferred
    for port in random.sample(PORTS, 100):
        if port_is_free(host, port):
            return port
    raise StartFailed(f"no free port was found on {host}")


def command_of(pid: int) -> str:
    """A living process's command line, joined by spaces; empty when there is none (a zombie counts as gone)."""
    if Path("/proc/self/cmdline").exists():
        try:
            return (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .rstrip(b"\0")
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:  # it ended, perhaps while we read
            return ""
    listing = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listing.stdout.strip()


def end_orphan(
    pid: int, command_part: str, signals: Sequence[signal.Signals], *, each: float = 10.0
) -> bool:
    """End a process that is not our child, if its command line contains `mark`; whether it is gone then.

    Each signal gets `each` seconds to work before the next is tried.
    """
    for number in signals:
        if command_part not in command_of(pid):
            return True
        with contextlib.suppress(ProcessLookupError):  # ended since we looked
            os.kill(pid, number)
        deadline = time.monotonic() + each
        while command_part in command_of(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
    return command_part not in command_of(pid)
