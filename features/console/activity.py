"""Plots of the last hour, day or week, and the same as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from starlette.responses import Response

from features.console.activity_parts import KINDS
from features.console.page import Page, Visit, choice
from features.console.part_plots import (
    COMPLETED,
    FAILED,
    ListLink,
    list_link,
    plots_by_part,
    read_parts,
)
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
    READ_ACTIVITY,
    TEN_MINUTES,
    ActivityRow,
    add_counts,
    percentile,
)
from models.prices import BILLIONTHS


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
