"""When schedules run: slots where clocks change, and which slots run after an outage."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.schedules.timing import (
    InvalidTiming,
    Missed,
    MissedPolicy,
    Step,
    Timing,
    newest_slots,
    next_slots,
    next_step,
    require_cron,
    require_zone,
    slots_after,
)

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
SPRING = datetime(2027, 3, 27, 20, tzinfo=UTC)
"""The evening before Berlin goes from 02:00 to 03:00, at 01:00 UTC."""
AUTUMN = datetime(2026, 10, 24, 20, tzinfo=UTC)
"""The evening before Berlin goes from 03:00 back to 02:00, at 01:00 UTC."""


def _times(timing: Timing, after: datetime, count: int) -> list[str]:
    return [f"{slot:%d %H:%M}" for slot in islice(slots_after(timing, after), count)]


def _berlin(cron: str) -> Timing:
    return Timing(cron=cron, time_zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # A time of day that is left out: just behind the gap, once, also if two are left out.
        ("30 2 * * *", ["28 01:00", "29 00:30", "30 00:30"]),
        ("0,30 2 * * *", ["28 01:00", "29 00:00", "29 00:30"]),
        ("0 3 * * *", ["28 01:00", "29 01:00", "30 01:00"]),
        # What a clock on the wall does not show does not run.
        ("*/20 2 * * *", ["29 00:00", "29 00:20", "29 00:40"]),
        ("15 * * * *", ["27 20:15", "27 21:15", "27 22:15", "27 23:15", "28 00:15", "28 01:15"]),
    ],
)
def test_slots_in_the_hour_that_is_left_out(cron: str, expected: Sequence[str]) -> None:
    assert _times(_berlin(cron), SPRING, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # A time of day that comes twice: the first time only.
        ("30 2 * * *", ["25 00:30", "26 01:30", "27 01:30"]),
        ("0,30 2 * * *", ["25 00:00", "25 00:30", "26 01:00"]),
        # What a clock on the wall shows twice runs twice.
        ("*/20 2 * * *", ["25 00:00", "25 00:20", "25 00:40", "25 01:00", "25 01:20", "25 01:40"]),
        ("15 * * * *", ["24 20:15", "24 21:15", "24 22:15", "24 23:15", "25 00:15", "25 01:15"]),
    ],
)
def test_slots_in_the_hour_that_comes_twice(cron: str, expected: Sequence[str]) -> None:
    assert _times(_berlin(cron), AUTUMN, len(expected)) == expected


_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo")
_CRONS = (
    *("* * * * *", "*/15 * * * *", "30 2 * * *", "0,30 2 * * *", "0 1-4 * * *", "*/30 1-3 * * *"),
    *("0 0 * * *", "30 23,0,1,2 * * *", "10 */3 * * *", "0 0 * * SUN", "5 0 1 * MON"),
)


@given(
    st.sampled_from(_ZONES),
    st.sampled_from(_CRONS),
    st.sampled_from((SPRING, AUTUMN, datetime(2027, 4, 29, 12, tzinfo=UTC))),
    st.integers(0, 40 * 3600),
)
def test_the_slots_are_the_same_from_wherever_they_are_looked_for(
    zone: str, cron: str, day: datetime, seconds: int
) -> None:
    """So no slot comes twice, and none is left out, whenever a schedule moves on."""
    timing, start = Timing(cron=cron, time_zone=zone), day - DAY
    known = []
    for slot in slots_after(timing, start):
        known.append(slot)
        if slot > day + 3 * DAY:
            break
    assert known == sorted(set(known))
    after = day + timedelta(seconds=seconds)
    assert next_slots(timing, after)[0] == known[bisect_right(known, after)]


def test_an_expression_that_fits_no_day_has_no_slot() -> None:
    assert next_slots(Timing(cron="* * */20 * 1L"), NOON) == []


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 31 2 *", "a * * * *"]
)
def test_an_expression_that_is_none_is_refused(cron: str) -> None:
    with pytest.raises(InvalidTiming):
        require_cron(cron)


@given(st.text(alphabet="0123456789*/,-#LW MONJAN?²٣", max_size=30))
def test_every_text_is_an_expression_or_refused(text: str) -> None:
    try:
        require_cron(text)
    except InvalidTiming:
        return
    next_slots(Timing(cron=text), NOON)


@pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", "Europe", "europe/berlin"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InvalidTiming):
        require_zone(zone)


def test_the_newest_slots_of_a_long_time() -> None:
    timing = Timing(cron="*/10 * * * *")
    assert newest_slots(timing, NOON - 900 * DAY, NOON, 3) == [
        NOON - 20 * MINUTE,
        NOON - 10 * MINUTE,
        NOON,
    ]
    yearly = Timing(cron="0 0 1 1 *")
    assert newest_slots(yearly, NOON - 900 * DAY, NOON, 3) == [
        datetime(2025, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC),
    ]
    assert newest_slots(yearly, NOON - DAY, NOON, 3) == []


def _decided(timing: Timing, after: datetime, now: datetime, missed: Missed) -> list[Step]:
    """All steps, one after the other, as web processes take them."""
    policy, steps = MissedPolicy(missed, late=MINUTE, catch_up=3), []
    while (step := next_step(timing, after, now, policy)) is not None:
        assert step.slot > after
        steps.append(step)
        after = step.slot
    return steps


def _runs(*slots: datetime) -> list[Step]:
    return [Step(slot, runs=True) for slot in slots]


def _skips(slot: datetime) -> list[Step]:
    return [Step(slot, runs=False)]


@pytest.mark.parametrize("missed", Missed)
def test_a_slot_that_is_not_missed_runs(missed: Missed) -> None:
    hourly = Timing(cron="0 * * * *")
    now = NOON + timedelta(seconds=30)
    assert _decided(hourly, NOON - HOUR, now, missed) == _runs(NOON)
    assert _decided(hourly, NOON, now, missed) == []


def test_what_becomes_of_missed_slots() -> None:
    hourly, start = Timing(cron="0 * * * *"), NOON - 10 * HOUR
    now = NOON + 30 * MINUTE
    assert _decided(hourly, start, now, Missed.SKIP) == _skips(NOON)
    assert _decided(hourly, start, now, Missed.RUN_ONCE) == _skips(NOON - HOUR) + _runs(NOON)
    newest = [NOON - 2 * HOUR, NOON - HOUR, NOON]
    expected = _skips(NOON - 3 * HOUR) + _runs(*newest)
    assert _decided(hourly, start, now, Missed.RUN_ALL) == expected
    assert _decided(hourly, NOON - HOUR, now, Missed.RUN_ALL) == _runs(NOON)


def test_the_slot_of_this_minute_runs_also_if_those_before_it_are_skipped() -> None:
    each_minute = Timing(cron="* * * * *")
    steps = _decided(each_minute, NOON - HOUR, NOON + timedelta(seconds=5), Missed.SKIP)
    assert steps == _skips(NOON - MINUTE) + _runs(NOON)


def test_a_schedule_that_runs_once() -> None:
    once = Timing(run_at=NOON)
    assert next_slots(once, NOON - DAY) == [NOON]
    assert next_slots(once, NOON) == []
    assert _decided(once, NOON - DAY, NOON - MINUTE, Missed.RUN_ALL) == []
    assert _decided(once, NOON - DAY, NOON + DAY, Missed.RUN_ONCE) == _runs(NOON)
    assert _decided(once, NOON - DAY, NOON + DAY, Missed.SKIP) == _skips(NOON)


def test_a_clock_that_is_set_back_decides_no_slot_again() -> None:
    hourly = Timing(cron="0 * * * *")
    assert _decided(hourly, NOON, NOON - 5 * HOUR, Missed.RUN_ALL) == []
