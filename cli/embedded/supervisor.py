"""Keeps a set of processes running until a signal says stop, then stops them in order."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Self

from cli.embedded.process import Process, StartFailed, rotate

HEALTHY_AFTER = 30.0
"""Seconds after which a process counts as started well: its next death is its first again."""
MAX_RESTART_DELAY = 30.0
POLL_INTERVAL = 0.1
"""Seconds between two looks at the children."""
LOG_CHECK_INTERVAL = 10.0
"""Seconds between two looks at the size of the logs."""


def print_status(text: str) -> None:
    """Tell the operator: standard output belongs to the `ready` line."""
    print(text, file=sys.stderr, flush=True)


class Stopped(Exception):
    """A signal asked us to stop while we waited."""


class StopSignal:
    """Remembers SIGINT, SIGTERM or SIGHUP; a wait for it ends at once. A pipe, so that nothing is locked while a signal interrupts."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        numbers = [signal.SIGINT, signal.SIGTERM]
        if (
            signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        ):  # under nohup a closed terminal is no reason to stop
            numbers.append(signal.SIGHUP)
        self._previous_handlers = {
            number: signal.signal(number, self._on_signal) for number in numbers
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._previous_handlers.items():
            signal.signal(number, before)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.wait(
            0
        ):  # one byte is never read, so the pipe stays readable; more would fill it
            os.write(self._writer, bytes([number]))

    def wait(self, seconds: float) -> bool:
        """Whether the signal came, waiting up to `seconds` for it."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def pause(self, seconds: float) -> None:
        """Sleep, or raise Stopped."""
        if self.wait(seconds):
            raise Stopped


@dataclass
class _Child:
    """One child and its recent deaths."""

    process: Process
    launched_at: float
    recent_exits: int = 0
    restart_at: float | None = None
    """When to launch it again, on the monotonic clock; None while it runs."""

    def record_exit(self, now: float) -> float:
        """Count a death; the seconds to wait: none after the first, then half a second, doubling."""
        self.recent_exits = 1 if now - self.launched_at > HEALTHY_AFTER else self.recent_exits + 1
        delay = (
            0.0
            if self.recent_exits == 1
            else min(0.5 * 2.0 ** min(self.recent_exits - 2, 10), MAX_RESTART_DELAY)
        )
        self.restart_at = now + delay
        return delay


class Supervisor:
    """The children of one stack. `record` is told the children whenever one was launched."""

    def __init__(self, record: Callable[[Sequence[Process]], None]) -> None:
        self._record = record
        self._children: list[_Child] = []

    def add(self, process: Process) -> None:
        """Care for a process that has just been launched."""
        self._children.append(_Child(process, time.monotonic()))
        self._record([care.process for care in self._children])

    def first_exited(self) -> Process | None:
        """A child that has ended, for a start that will not wait for a second attempt."""
        return next((care.process for care in self._children if not care.process.running()), None)

    def watch(self, stop: StopSignal) -> None:
        """Restart what dies, until the signal comes."""
        logs_due = time.monotonic() + LOG_CHECK_INTERVAL
        while not stop.wait(POLL_INTERVAL):
            for care in self._children:
                self._check(care, time.monotonic())
            if time.monotonic() > logs_due:
                logs_due = time.monotonic() + LOG_CHECK_INTERVAL
                for care in self._children:
                    rotate(care.process.log)

    def _check(self, child: _Child, now: float) -> None:
        if child.restart_at is None and not child.process.running():
            delay = child.record_exit(now)
            when = f"in {delay:g} s" if delay else "now"
            print_status(
                f"{child.process.name} ended with {child.process.exit_code()}, restarting it {when}; its log is {child.process.log}"
            )
        if child.restart_at is None or now < child.restart_at:
            return
        child.launched_at, child.restart_at = now, None
        try:
            child.process.launch()  # not waited for: the others reconnect by themselves, and a signal must not wait either
        except (StartFailed, OSError) as error:
            print_status(
                f"{child.process.name} could not be restarted, trying again in {child.record_exit(now):g} s: {error}"
            )
        else:
            self._record([each.process for each in self._children])


def stop_together(processes: Sequence[Process]) -> None:
    """Ask all, then wait for each; the slowest decides how long it takes."""
    for process in processes:
        process.request_stop()
    started = time.monotonic()
    for process in processes:
        process.wait_for_exit(max(0.0, started + process.stop_timeout - time.monotonic()))
