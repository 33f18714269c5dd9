"""Plots of the last hour, day or week, and the same as a table; and the plots by model, project or
upstream, where a click on one leads to the list of the responses of that time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from uuid import UUID

from starlette.responses import Response

from features.console.activity_parts import KINDS, NO_UPSTREAM, PROJECT
from features.console.page import Page, Visit, choice
from features.console.plots import (
    BOTTOM,
    DURATIONS,
    HEIGHT,
    LEFT,
    NUMBERS,
    RIGHT,
    TOP,
    WIDTH,
    Measure,
    Plot,
    Series,
    TimeAxis,
    Values,
    draw,
)
from models.db.database import fetch_idempotent
from models.db.queries.activity import (
    MINUTE,
    OTHERS,
    READ_ACTIVITY,
    READ_PARTS,
    TEN_MINUTES,
    ActivityRow,
    PartSlot,
    add_counts,
    percentile,
)
from models.db.queries.organization import PROJECTS_BY_ID
from models.ids import first_id_at, response_id
from models.lifecycle import Status
from models.prices import BILLIONTHS

_SHOWN = 5
"""Names that have a line of their own."""
_SPARE = 60
"""Seconds by which a list begins earlier: it counts back from when it is opened."""
COMPLETED = (Status.COMPLETED.value, Status.INCOMPLETE.value)
FAILED = (Status.FAILED.value,)
_ENDED = (*COMPLETED, *FAILED)


class ListLink(Protocol):
    """The address of the list of a slot; None: of all the time."""

    def __call__(self, at: int | None, /, statuses: Sequence[str] = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class ShownPart:
    """What has ended of one part, by the number of the slot."""

    name: str
    """as it is shown"""
    filters: dict[str, str] | None
    """the parameters of the list that shows it; None: no list does"""
    slots: dict[int, PartSlot]

    @property
    def is_rest(self) -> bool:
        """It is all that has no line of its own."""
        return any(slot.name == OTHERS for slot in self.slots.values())


def list_link(
    visit: Visit,
    axis: TimeAxis,
    at: int | None,
    /,
    statuses: Sequence[str] = (),
    filters: dict[str, str] | None = None,
) -> str:
    """The address of the responses that were created in the slot `at`; None: in all of the
    time."""
    begin = axis.time(at or 0).timestamp()
    end = axis.time(axis.count if at is None else at + 1).timestamp()
    since = math.ceil(datetime.now(UTC).timestamp() - begin) + _SPARE
    return visit.url(
        "/responses",
        **(filters or {}),
        status=list(statuses),
        since=f"{since}s",
        before=response_id(first_id_at(end)),
    )


async def read_parts(visit: Visit, kind: str, width: int, axis: TimeAxis) -> list[ShownPart]:
    """The parts that have ended most, the largest first, and the rest last."""
    values = {
        "width": width,
        "kind": kind,
        "since": axis.begin,
        "step": axis.step,
        "names": _SHOWN,
    }
    by_name: dict[str, dict[int, PartSlot]] = {}
    for row in await fetch_idempotent(visit.pool, READ_PARTS, values):
        if row.slot < axis.count:
            by_name.setdefault(row.name, {})[row.slot] = row
    projects = await _project_names(visit, by_name) if kind == PROJECT else None
    parts = [_shown(kind, name, slots, projects) for name, slots in by_name.items()]
    return sorted(parts, key=lambda part: (part.is_rest, -_ended(part)))


async def _project_names(visit: Visit, ids: dict[str, dict[int, PartSlot]]) -> dict[str, str]:
    values = {"ids": [UUID(each) for each in ids if each != OTHERS]}
    rows = await fetch_idempotent(visit.pool, PROJECTS_BY_ID, values)
    return {str(row.id): row.name for row in rows}


def _shown(
    kind: str, name: str, slots: dict[int, PartSlot], projects: dict[str, str] | None
) -> ShownPart:
    if name == OTHERS:
        return ShownPart("others", None, slots)
    if name == NO_UPSTREAM:
        return ShownPart("no upstream", None, slots)
    if projects is not None and name not in projects:
        return ShownPart(f"deleted project {name[:8]}", None, slots)
    shown = name if projects is None else projects[name]
    return ShownPart(shown, {kind: shown}, slots)


def _ended(part: ShownPart) -> int:
    return sum(slot.completed + slot.failed for slot in part.slots.values())


def plots_by_part(
    visit: Visit, kind: str, parts: Sequence[ShownPart], axis: TimeAxis, currency: str
) -> list[Plot]:
    """What has ended, tokens and costs, with a line for each part."""
    minutes = axis.step / 60

    def plot(title: str, value: Callable[[PartSlot], float], statuses: Sequence[str]) -> Plot:
        series = [_series(visit, axis, part, value, statuses) for part in parts]
        return draw(title, series, axis, NUMBERS)

    plots = [
        plot(
            f"Completed, per minute, by {kind}",
            lambda slot: slot.completed / minutes,
            COMPLETED,
        ),
        plot(f"Failed, per minute, by {kind}", lambda slot: slot.failed / minutes, FAILED),
        plot(
            f"Tokens, per minute, by {kind}",
            lambda slot: (slot.input_tokens + slot.output_tokens) / minutes,
            _ENDED,
        ),
    ]
    if any(slot.cost for part in parts for slot in part.slots.values()):
        title = f"Cost ({currency}), per hour, by {kind}"
        plots.append(plot(title, lambda slot: 60 * slot.cost / BILLIONTHS / minutes, _ENDED))
    return plots


def _series(
    visit: Visit,
    axis: TimeAxis,
    part: ShownPart,
    value: Callable[[PartSlot], float],
    statuses: Sequence[str],
) -> Series:
    values = [value(part.slots[at]) if at in part.slots else 0.0 for at in range(axis.count)]
    link: Callable[[int | None], str] | None = None
    if part.filters is not None:
        link = partial(list_link, visit, axis, statuses=statuses, filters=part.filters)
    return Series(
        part.name,
        values,
        is_rest=part.is_rest,
        link=None if link is None else link(None),
        point_link=link,
    )


@dataclass(frozen=True, slots=True)
class Range:
    """How much time the plots show."""

    width: int
    """seconds of the rows that are read"""
    step: int
    """seconds of a slot"""
    count: int
    pattern: str
    tick: int
    """seconds between two labels"""
    tick_pattern: str


_RANGES = {
    "hour": Range(MINUTE, 60, 60, "%H:%M", 600, "%H:%M"),
    "day": Range(TEN_MINUTES, 600, 144, "%H:%M", 14_400, "%H:%M"),
    "week": Range(TEN_MINUTES, 3600, 168, "%a %H:%M", 86_400, "%a %d"),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened in a slot of time. None: not known. Counts are for a minute."""

    waiting: int | None = None
    oldest_seconds: float | None = None
    running: int | None = None
    completed: float | None = None
    failed: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    cost: float | None = None
    """in the currency, for an hour"""
    first_token: tuple[float | None, float | None] = (None, None)
    """in seconds: half of the responses took no longer, and 95 % of them"""
    total: tuple[float | None, float | None] = (None, None)

    @classmethod
    def of(cls, rows: Sequence[ActivityRow], minutes: float) -> "Moment":
        """Of the rows of a slot of so many minutes."""
        if not rows:
            return cls()
        first_tokens = add_counts([row.first_token_counts for row in rows])
        totals = add_counts([row.total_counts for row in rows])
        oldest = [row.oldest_seconds for row in rows if row.oldest_seconds is not None]
        return cls(
            waiting=_most([row.waiting for row in rows]),
            oldest_seconds=max(oldest, default=None),
            running=_most([row.running for row in rows]),
            completed=sum(row.completed for row in rows) / minutes,
            failed=sum(row.failed for row in rows) / minutes,
            input_tokens=sum(row.input_tokens for row in rows) / minutes,
            output_tokens=sum(row.output_tokens for row in rows) / minutes,
            cost=60 * sum(row.cost for row in rows) / BILLIONTHS / minutes,
            first_token=(percentile(first_tokens, 0.5), percentile(first_tokens, 0.95)),
            total=(percentile(totals, 0.5), percentile(totals, 0.95)),
        )


def _most(counted: Sequence[int | None]) -> int | None:
    return max((each for each in counted if each is not None), default=None)


def moments_of(rows: Sequence[ActivityRow], axis: TimeAxis) -> list[Moment]:
    """What happened in each slot. Rows before and after the time of the axis are left out."""
    slots: list[list[ActivityRow]] = [[] for _ in range(axis.count)]
    begin = axis.begin.timestamp()
    for row in rows:
        at = int((row.begins_at.timestamp() - begin) // axis.step)
        if 0 <= at < axis.count:
            slots[at].append(row)
    return [Moment.of(slot, axis.step / 60) for slot in slots]


def plots_of(
    moments: Sequence[Moment],
    axis: TimeAxis,
    link: ListLink | None = None,
    currency: str | None = None,
) -> list[Plot]:
    """All plots of the page. `link`: the address of what happened in a slot; None: without links.
    `currency` None: without a plot of costs."""

    def ended(name: str, values: Values, statuses: Sequence[str], *, is_bad: bool) -> Series:
        if link is None:
            return Series(name, values, is_bad)
        of_slot = partial(link, statuses=statuses)
        return Series(name, values, is_bad, link=of_slot(None), point_link=of_slot)

    def plot(title: str, series: Sequence[Series], measure: Measure = NUMBERS) -> Plot:
        return draw(title, series, axis, measure, link)

    plots = [
        plot("Waiting", [Series("waiting", [m.waiting for m in moments])]),
        plot(
            "Oldest that waits", [Series("oldest", [m.oldest_seconds for m in moments])], DURATIONS
        ),
        plot("Running", [Series("running", [m.running for m in moments])]),
        plot(
            "Ended, per minute",
            [
                ended("completed", [m.completed for m in moments], COMPLETED, is_bad=False),
                ended("failed", [m.failed for m in moments], FAILED, is_bad=True),
            ],
        ),
        plot("Time to the first token", _percentiles([m.first_token for m in moments]), DURATIONS),
        plot("Time to the end", _percentiles([m.total for m in moments]), DURATIONS),
        plot(
            "Tokens, per minute",
            [
                Series("input", [m.input_tokens for m in moments]),
                Series("output", [m.output_tokens for m in moments]),
            ],
        ),
    ]
    if currency is not None:
        costs = [Series("cost", [m.cost for m in moments])]
        plots.append(plot(f"Cost ({currency}), per hour", costs))
    return plots


def _percentiles(pairs: Sequence[tuple[float | None, float | None]]) -> list[Series]:
    return [
        Series("p50", [median for median, _ in pairs]),
        Series("p95", [slow for _, slow in pairs]),
    ]


async def show(visit: Visit) -> Response:
    """The page."""
    name = choice(visit.query, "range", _RANGES, "hour")
    chosen = _RANGES[name]
    # The last slot is the one that has ended last; of a day and a week, the one that runs.
    last = int(datetime.now(UTC).timestamp() - MINUTE) // chosen.step * chosen.step
    begin = datetime.fromtimestamp(last - (chosen.count - 1) * chosen.step, UTC)
    axis = TimeAxis(
        begin, chosen.step, chosen.count, chosen.pattern, chosen.tick, chosen.tick_pattern
    )
    values = {"width": chosen.width, "since": begin}
    moments = moments_of(await fetch_idempotent(visit.pool, READ_ACTIVITY, values), axis)
    is_table = visit.query.get("table") == "1"
    by = choice(visit.query, "by", ("", *KINDS))
    currency = visit.state.settings.prices.currency
    shows_cost = any(moment.cost for moment in moments)
    link = partial(list_link, visit, axis)
    plots: list[Plot] = []
    if by and not is_table:
        parts = await read_parts(visit, by, chosen.width, axis)
        plots = plots_by_part(visit, by, parts, axis, currency)
    elif not is_table:
        plots = plots_of(moments, axis, link, currency if shows_cost else None)
    return visit.page(
        "activity.html",
        ranges=[(each, f"last {each}") for each in _RANGES],
        range=name,
        is_table=is_table,
        by=by,
        kinds=[("", "all together"), *((kind, f"by {kind}") for kind in KINDS)],
        plots=plots,
        rows=[(axis.time(at), link(at), moment) for at, moment in enumerate(moments)][::-1],
        has_data=any(moment != Moment() for moment in moments),
        currency=currency if shows_cost else None,
        size=(WIDTH, HEIGHT),
        edges=(LEFT, RIGHT, TOP, BOTTOM),
    )


PAGES = (Page("/activity", show, menu="Activity"),)
