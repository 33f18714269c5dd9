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

HEALTHY = 30.0
"""Seconds after which a process counts as started well: its next death is its first again."""
LONGEST_DELAY = 30.0
LOOK = 0.1
"""Seconds between two looks at the children."""
LOGS = 10.0
"""Seconds between two looks at the size of the logs."""


def say(text: str) -> None:
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
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.came(
            0
        ):  # one byte is never read, so the pipe stays readable; more would fill it
            os.write(self._writer, bytes([number]))

    def came(self, seconds: float) -> bool:
        """Whether the signal came, waiting up to `seconds` for it."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def pause(self, seconds: float) -> None:
        """Sleep, or raise Stopped."""
        if self.came(seconds):
            raise Stopped


@dataclass
class _Care:
    """One child and its recent deaths."""

    process: Process
    launched: float
    deaths: int = 0
    due: float | None = None
    """When to launch it again, on the monotonic clock; None while it runs."""

    def mourn(self, now: float) -> float:
        """Count a death; the seconds to wait: none after the first, then half a second, doubling."""
        self.deaths = 1 if now - self.launched > HEALTHY else self.deaths + 1
        delay = (
            0.0 if self.deaths == 1 else min(0.5 * 2.0 ** min(self.deaths - 2, 10), LONGEST_DELAY)
        )
        self.due = now + delay
        return delay


class Supervisor:
    """The children of one stack. `record` is told the children whenever one was launched."""

    def __init__(self, record: Callable[[Sequence[Process]], None]) -> None:
        self._record = record
        self._cared: list[_Care] = []

    def adopt(self, process: Process) -> None:
        """Care for a process that has just been launched."""
        self._cared.append(_Care(process, time.monotonic()))
        self._record([care.process for care in self._cared])

    def first_dead(self) -> Process | None:
        """A child that has ended, for a start that will not wait for a second attempt."""
        return next((care.process for care in self._cared if not care.process.running()), None)

    def watch(self, stop: StopSignal) -> None:
        """Restart what dies, until the signal comes."""
        logs_due = time.monotonic() + LOGS
        while not stop.came(LOOK):
            for care in self._cared:
                self._look(care, time.monotonic())
            if time.monotonic() > logs_due:
                logs_due = time.monotonic() + LOGS
                for care in self._cared:
                    rotate(care.process.log)

    def _look(self, care: _Care, now: float) -> None:
        if care.due is None and not care.process.running():
            delay = care.mourn(now)
            when = f"in {delay:g} s" if delay else "now"
            say(
                f"{care.process.name} ended with {care.process.exit_code()}, restarting it {when}; its log is {care.process.log}"
            )
        if care.due is None or now < care.due:
            return
        care.launched, care.due = now, None
        try:
            care.process.launch()  # not waited for: the others reconnect by themselves, and a signal must not wait either
        except (StartFailed, OSError) as error:
            say(
                f"{care.process.name} could not be restarted, trying again in {care.mourn(now):g} s: {error}"
            )
        else:
            self._record([each.process for each in self._cared])


def stop_together(processes: Sequence[Process]) -> None:
    """Ask all, then wait for each; the slowest decides how long it takes."""
    for process in processes:
        process.ask_to_stop()
    started = time.monotonic()
    for process in processes:
        process.await_end(max(0.0, started + process.patience - time.monotonic()))
