"""Restarts the processes of a stack when they end, until a signal arrives."""

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Self

from cli.embedded.process import Process, rotate
from cli.errors import CommandFailed
from cli.output import print_status

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
