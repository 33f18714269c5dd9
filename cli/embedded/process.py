"""One child process: started, logged to a file, stopped, and killed if it does not stop; and the
processes of a stack, restarted when they end, until a signal arrives."""

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Self

from cli.embedded.log_text import summary
from cli.errors import DISK_FULL, CommandFailed, disk_full
from cli.output import print_status

LAUNCHER = Path(__file__).parent / "parent_death.py"

LOG_LIMIT = 32 * 1024 * 1024
"""Bytes after which a log is copied to `<name>.log.1`; the logs of a child take about twice
this."""

PORTS = range(15000, 32000)
"""Free ports are taken from here: below the range from which systems take ports for outgoing
connections. Otherwise such a connection could take the port of a server that restarts."""


@dataclass(frozen=True)
class User:
    """The user that a child runs as."""

    uid: int
    gid: int


class Process:
    """A program that runs until it is stopped. Not thread-safe.

    On Linux the child gets `death_signal` when the *thread* that launched it ends, so launch it
    from a thread that lives as long as the child.
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
        """`log` gets standard output and standard error.

        Without `environment`, the child's environment is only a C locale, for messages in English.
        """
        self.name = name
        self.log = log
        self.command = list(command)
        self.environment = {"LC_ALL": "C"} if environment is None else dict(environment)
        self.directory = Path("/")
        self.user: User | None = None
        self.is_held = False
        """A launch leaves standard input open until `release`: a program that waits for its end
        does not begin its work before (cli/embedded/prepared.py)."""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the latest launch."""
        if self._child is None:
            raise LookupError(f"{self.name} was not launched")
        return self._child.pid

    def launch(self) -> None:
        """Starts the program and returns at once."""
        self.log.parent.mkdir(0o700, parents=True, exist_ok=True)
        rotate(self.log)
        user = (str(self.user.uid), str(self.user.gid)) if self.user else ("-", "-")
        launcher = [
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            str(os.getpid()),
            str(int(self.death_signal)),
            *user,
        ]
        with open_log(self.log) as log:
            self._child = subprocess.Popen(
                [*launcher, *self.command],
                stdin=subprocess.PIPE if self.is_held else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environment,
                # a new session: Ctrl-C reaches only this process, which stops its children in order
                start_new_session=True,
            )

    def release(self) -> None:
        """Closes the standard input of a held process. Later launches are not held."""
        self.is_held = False
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def exit_code(self) -> int | None:
        """The exit code of the latest launch (negative: the signal); None if it runs or was not
        launched."""
        return None if self._child is None else self._child.poll()

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def request_stop(self) -> None:
        """Sends the stop signal if the process was launched; does not wait."""
        if self._child is not None:
            self._child.send_signal(self.stop_signal)  # no effect if it has ended

    def wait_for_exit(self, seconds: float) -> None:
        """Waits until the process ends; kills it after `seconds`."""
        if self._child is None:
            return
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> None:
        """Stops the process, by SIGKILL after `stop_timeout`. Returns when it has ended."""
        self.request_stop()
        self.wait_for_exit(self.stop_timeout)

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process has ended."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def last_log_line(self) -> str:
        """The last line of the log that is not empty."""
        return next(reversed(self.last_log_lines()), "")

    def last_log_lines(self) -> list[str]:
        """The lines in the last 4 KiB of the log that are not empty."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
        return [line.strip() for line in lines if line.strip()]

    def failure(self, what: str) -> CommandFailed:
        """The error for a launch that failed, with the last line of the log."""
        line = self.last_log_line()
        if any(DISK_FULL in each for each in self.last_log_lines()):
            return disk_full(self.log.parent.parent)
        return CommandFailed(
            f"{self.name} {what}{f' ({summary(line)})' if line else ''}; its log is {self.log}"
        )


class ServerProcess(Process):
    """A process that is ready when it answers requests."""

    def start(self, pause: Callable[[float], None] = time.sleep, *, within: float = 60.0) -> None:
        """Launches the process and returns when it is ready.

        `pause(seconds)` is called between two checks and may raise to give up. `within` is in
        seconds; it is long because a database may need time to recover after a crash. Raises
        CommandFailed if the process does not get ready; then it is stopped.
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
        """Whether it answers requests. Raises CommandFailed if it never will."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def open_log(log: Path) -> BinaryIO:
    """Opens a log to append to it. Only its owner can read it: logs name projects, models and
    responses, and have what libraries print."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def rotate(log: Path) -> None:
    """Copies a log that is over the limit to `<name>.log.1` and empties it.

    It is not renamed, because the child has it open. A line written in between is lost.
    """
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        shutil.copy(log, log.with_name(log.name + ".1"))  # with its mode
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
    """Whether the port is free within `seconds`: the process that has it may be stopping."""
    deadline = time.monotonic() + seconds
    while not port_is_free(host, port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return port_is_free(host, port)


def free_port(host: str = "127.0.0.1", preferred: int | None = None) -> int:
    """`preferred` if it is free on `host`, else any free port. The port is not reserved."""
    if preferred is not None and port_is_free(host, preferred):
        return preferred
    for port in random.sample(PORTS, 100):
        if port_is_free(host, port):
            return port
    raise CommandFailed(f"there is no free port on {host}")


def command_of(pid: int) -> str:
    """The command line of a process, joined by spaces; empty if it has ended or is a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .rstrip(b"\0")
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:  # it has ended, perhaps during the read
            return ""
    listing = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listing.stdout.strip()


def end_orphan(
    pid: int, command_part: str, signals: Sequence[signal.Signals], *, each: float = 10.0
) -> bool:
    """Ends a process that is not a child, if its command line contains `command_part`.

    Sends one signal after another, and waits up to `each` seconds after each. Returns whether the
    process has ended.
    """
    for number in signals:
        if command_part not in command_of(pid):
            return True
        with contextlib.suppress(ProcessLookupError):  # it ended after the check
            os.kill(pid, number)
        deadline = time.monotonic() + each
        while command_part in command_of(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
    return command_part not in command_of(pid)


HEALTHY_AFTER = 30.0
"""Seconds after which a process counts as healthy: earlier exits are no longer counted."""
MAX_RESTART_DELAY = 30.0
"""Longest delay of a restart, in seconds."""
POLL_INTERVAL = 0.1
"""Seconds between two checks of the children."""
LOG_CHECK_INTERVAL = 10.0
"""Seconds between two checks of the logs' sizes."""


class Stopped(Exception):
    """A stop signal arrived during a wait."""


class StopSignal:
    """Catches SIGINT, SIGTERM and SIGHUP, and lets one wait for them.

    It uses a pipe, because a signal handler must not take locks.
    """

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        self._previous_handlers = {
            number: signal.signal(number, self._on_signal) for number in numbers
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.wait(0):  # the byte is never read; more bytes would fill the pipe
            os.write(self._writer, bytes([number]))

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds`; returns whether a signal has arrived."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def pause(self, seconds: float) -> None:
        """Waits `seconds`. Raises Stopped if a signal arrives."""
        if self.wait(seconds):
            raise Stopped


@dataclass
class _Child:
    """One child and its recent exits."""

    process: Process
    launched_at: float
    recent_exits: int = 0
    restart_at: float | None = None
    """When to launch it again (monotonic clock); None while it runs."""

    def record_exit(self, now: float) -> float:
        """Counts an exit. Returns the seconds until the restart: 0 at first, then 0.5, doubling."""
        self.recent_exits = 1 if now - self.launched_at > HEALTHY_AFTER else self.recent_exits + 1
        delay = (
            0.0
            if self.recent_exits == 1
            else min(0.5 * 2.0 ** min(self.recent_exits - 2, 10), MAX_RESTART_DELAY)
        )
        self.restart_at = now + delay
        return delay


class Supervisor:
    """The children of one stack. `record` is called with all of them after each launch."""

    def __init__(self, record: Callable[[Sequence[Process]], None]) -> None:
        self._record = record
        self._children: list[_Child] = []

    def add(self, process: Process) -> None:
        """Adds a process that has just been launched."""
        self._children.append(_Child(process, time.monotonic()))
        self._record([child.process for child in self._children])

    def first_exited(self) -> Process | None:
        """A child that has ended, or None."""
        return next(
            (child.process for child in self._children if not child.process.running()), None
        )

    def watch(self, stop: StopSignal) -> None:
        """Restarts children that end, until a signal arrives."""
        logs_due = time.monotonic() + LOG_CHECK_INTERVAL
        while not stop.wait(POLL_INTERVAL):
            for child in self._children:
                self._check(child, time.monotonic())
            if time.monotonic() > logs_due:
                logs_due = time.monotonic() + LOG_CHECK_INTERVAL
                for child in self._children:
                    rotate(child.process.log)

    def _check(self, child: _Child, now: float) -> None:
        if child.restart_at is None and not child.process.running():
            delay = child.record_exit(now)
            when = f"in {delay:g} s" if delay else "now"
            print_status(
                f"{child.process.name} ended with {child.process.exit_code()}, "
                f"restarting it {when}; its log is {child.process.log}"
            )
        if child.restart_at is None or now < child.restart_at:
            return
        child.launched_at, child.restart_at = now, None
        try:
            # not waited for: the other processes reconnect, and a signal must be handled at once
            child.process.launch()
        except (CommandFailed, OSError) as error:
            print_status(
                f"{child.process.name} could not be restarted, "
                f"trying again in {child.record_exit(now):g} s: {error}"
            )
        else:
            self._record([each.process for each in self._children])


def stop_together(processes: Sequence[Process]) -> None:
    """Sends the stop signal to all, then waits for all."""
    for process in processes:
        process.request_stop()
    started = time.monotonic()
    for process in processes:
        process.wait_for_exit(max(0.0, started + process.stop_timeout - time.monotonic()))
