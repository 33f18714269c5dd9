"""When a schedule runs: its slots, and which of them run after an outage. Pure: no clock, no I/O.

A slot is a moment, not a time of day. cronsim finds them as Debian's cron does where a zone changes
its clocks (docs/adr/0074): an expression with fixed hours and minutes runs once for each time of
day that it names, just behind the gap if the time of day is left out, and the first time if it
comes twice. One with `*` or `*/n` there runs by what a clock on the wall shows: not in the gap, and
in each of the two equal hours.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

SHOWN = 5
"""Slots that are shown of those to come."""
MAX_CRON = 200
"""Characters of an expression."""
_FIELDS = 5
_A_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_FIRST_LOOK = timedelta(hours=1)


class InvalidTiming(Exception):
    """An expression or a zone that cannot be used; the message says why."""


class Missed(StrEnum):
    """What becomes of slots that passed while nothing could run."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule runs: once, or by an expression."""

    run_at: datetime | None = None
    cron: str | None = None
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class MissedPolicy:
    """Which of the slots that have passed are run."""

    missed: Missed
    late: timedelta
    """a slot that is older is missed"""
    catch_up: int
    """most slots that RUN_ALL runs"""

    def most(self, age: timedelta) -> int:
        """How many of the newest slots that have passed are run. `age`: of the newest one."""
        if self.missed is Missed.RUN_ALL:
            return self.catch_up
        return 1 if self.missed is Missed.RUN_ONCE or age <= self.late else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What is decided next of a schedule: the slot runs, or all slots up to it are skipped."""

    slot: datetime
    runs: bool


def require_zone(name: str) -> None:
    """Raises InvalidTiming unless it is a time zone of the IANA database."""
    if name not in _zones():
        raise InvalidTiming("expected the name of an IANA time zone such as 'Europe/Berlin'")


def require_cron(expression: str) -> None:
    """Raises InvalidTiming unless it is a cron expression of five fields."""
    if len(expression) > MAX_CRON:
        raise InvalidTiming(f"expected at most {MAX_CRON} characters")
    if len(expression.split()) != _FIELDS:
        raise InvalidTiming(
            "expected five fields: minute, hour, day of the month, month, day of the week"
        )
    try:
        CronSim(expression, _A_TIME)
    except CronSimError as fault:
        raise InvalidTiming(str(fault).lower()) from None


def slots_after(timing: Timing, after: datetime) -> Iterator[datetime]:
    """The slots later than `after`, in UTC, each later than the one before."""
    if timing.run_at is not None and timing.run_at > after:
        yield timing.run_at.astimezone(UTC)
    if timing.cron is None:
        return
    latest = after.astimezone(UTC)
    for found in CronSim(timing.cron, after.astimezone(ZoneInfo(timing.time_zone))):
        slot = found.astimezone(UTC)
        # Where the clocks change, it may be one that was before, or that two times of day share.
        if slot > latest:
            latest = slot
            yield slot


def next_slots(timing: Timing, after: datetime) -> list[datetime]:
    """The next slots later than `after`, as many as are shown. Empty: there is none."""
    return list(islice(slots_after(timing, after), SHOWN))


def newest_slots(timing: Timing, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The newest `most` slots later than `after`, up to `until`. It looks back step by step: there
    may be a slot for each minute of years."""
    back = _FIRST_LOOK
    while True:
        start = max(after, until - back)
        passed = takewhile(lambda slot: slot <= until, slots_after(timing, start))
        newest = deque(passed, maxlen=most)
        if start == after or len(newest) == most:
            return list(newest)
        back *= 2


def next_step(
    timing: Timing, decided_until: datetime, now: datetime, policy: MissedPolicy
) -> Step | None:
    """What is to be decided next of the slots that have passed. None: nothing.

    Steps follow each other: `decided_until` of the next one is the slot of this one.
    """
    passed = newest_slots(timing, decided_until, now, policy.catch_up + 1)
    if not passed:
        return None
    most = policy.most(now - passed[-1])
    if len(passed) > most:
        return Step(passed[-1 - most], runs=False)
    return Step(passed[0], runs=True)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())
