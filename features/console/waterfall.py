"""What a response spent its time on, one bar for each: the line, turns of the model, tool calls,
waits for an upstream, and attempts that ended badly. Pure; waterfall.html draws it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from features.operator.diagnosis import failures_text
from features.operator.history import RELEASE_TEXTS, History
from models.db.queries.listing import ToolCallRow
from models.db.queries.operations import AttemptRow
from models.lifecycle import TERMINAL, Status
from models.ownership.timeline import attempts_on_timeline

_MAX_SPANS = 80
_NARROWEST = 0.4
"""Percent of the width that every bar has."""


class SpanKind(StrEnum):
    """What the time was spent on. Also its class in the style sheet."""

    LINE = "line"
    """It waited for a worker."""
    TURN = "turn"
    TOOL = "tool"
    WAIT = "wait"
    """for an upstream"""
    FAILED = "failed"
    """a turn that came to nothing"""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the time."""

    kind: SpanKind
    label: str
    begin: datetime
    end: datetime
    note: str = ""
    """what happened at its end"""
    goes_on: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, (self.end - self.begin).total_seconds())


@dataclass(frozen=True, slots=True)
class Bar:
    """A span as it is drawn, in percent of the width."""

    span: Span
    after: float
    """seconds from the beginning to the span"""
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The bars, and what they have room for."""

    bars: list[Bar]
    seconds: float
    """of the whole width"""
    left_out: int
    """spans behind the last bar"""


@dataclass(frozen=True, slots=True)
class ToolTimes:
    """The calls of server tools, and when they ended."""

    calls: Sequence[ToolCallRow]
    answered: Mapping[str, datetime]
    """when the result was stored, by the id of the item; it may be missing. The stream shows the
    results in the order of the calls, so that of a call that others have outrun is theirs."""

    def of_turn(self, turn: int, begin: datetime, end: datetime) -> Iterator[Span]:
        """The calls for which a turn asked that ran between two times, all of them from the first
        one on: they run at the same time."""
        for call in self.calls:
            at = self.answered.get(call.id)
            if call.turn != turn or (at is None and call.finished) or (at and at < begin):
                continue
            name = ": ".join(filter(None, (call.server, call.name or call.type.replace("_", " "))))
            is_done = at is not None and at <= end
            kind = SpanKind.FAILED if call.failed and is_done else SpanKind.TOOL
            yield Span(kind, name, begin, at if at and is_done else end, goes_on=not is_done)


def draw(history: History, tools: ToolTimes) -> Waterfall:
    """The waterfall of a response. One that was answered from the cache has no bars."""
    spans = list(_spans(history, tools)) if history.state.attempt or _is_open(history) else []
    if not spans:
        return Waterfall([], 0.0, 0)
    begin = spans[0].begin
    total = max(0.001, *((span.end - begin).total_seconds() for span in spans))
    bars = [_bar(span, begin, total) for span in spans[:_MAX_SPANS]]
    return Waterfall(bars, total, len(spans) - len(bars))


def _bar(span: Span, begin: datetime, total: float) -> Bar:
    after = max(0.0, (span.begin - begin).total_seconds())
    x = min(100 - _NARROWEST, 100 * after / total)
    width = min(100 - x, max(_NARROWEST, 100 * span.seconds / total))
    return Bar(span, after, round(x, 2), round(width, 2))


def _is_open(history: History) -> bool:
    return history.state.status not in TERMINAL


def _spans(history: History, tools: ToolTimes) -> Iterator[Span]:
    state, since = history.state, history.timeline[0].at
    gap = Span(SpanKind.LINE, _LINE_LABEL[bool(state.waits)], since, since)
    turns, number = 0, 0
    for attempt in history.attempts:
        dropped = attempts_on_timeline(attempt.attempt) - number - 1
        if dropped > 0:
            if number == 0 and state.started_at is not None:
                yield replace(gap, begin=since, end=state.started_at)
                since = state.started_at
            gap = Span(SpanKind.WAIT, _UPSTREAM_LABEL, since, since, _tries_text(dropped))
        number += dropped + 1
        yield replace(gap, begin=since, end=attempt.claimed_at)
        since = _end_of(history, attempt)
        yield from _attempt(history, attempt, turns, since, tools)
        turns += len(attempt.turns_ended_at)
        gap = _gap_after(attempt)
    if _is_open(history) and (state.owner is None or state.owner.dead):
        # The page says above why it waits now.
        yield replace(gap, begin=since, end=state.now, note="", goes_on=True)


def _tries_text(tries: int) -> str:
    return "after 1 try" if tries == 1 else f"after {tries} tries"


_UPSTREAM_LABEL = "Waits for an upstream"
_LINE_LABEL = {False: "In line", True: "Waits for its previous response"}


def _end_of(history: History, attempt: AttemptRow) -> datetime:
    """When an attempt ended. The last one may run, or may have ended the response."""
    owner = history.state.owner
    if attempt.ended_at is not None:
        return attempt.ended_at
    if owner is not None and owner.dead:
        return max(attempt.claimed_at, owner.expires_at)
    return history.state.now if _is_open(history) else history.timeline[-1].at


def _gap_after(attempt: AttemptRow) -> Span:
    """What follows an attempt until the next one; its times are set then."""
    at = attempt.claimed_at
    if attempt.outcome == "deferred":
        text = failures_text(attempt.failures)
        return Span(SpanKind.WAIT, _UPSTREAM_LABEL, at, at, text)
    return Span(SpanKind.LINE, "Waits for a worker", at, at)


def _attempt(
    history: History, attempt: AttemptRow, turns: int, end: datetime, tools: ToolTimes
) -> Iterator[Span]:
    """The turns of an attempt, and the calls between them. `turns`: those of earlier attempts."""
    since, suffix = attempt.claimed_at, ""
    if len(history.attempts) > 1:
        suffix = f", attempt {attempts_on_timeline(attempt.attempt)}"
    last = turns + len(attempt.turns_ended_at)
    calls: list[Span] = []
    for turn, ended_at in enumerate([*attempt.turns_ended_at, None], turns):
        calls = list(tools.of_turn(turn, since, end))
        yield from calls
        since = max([since, *(call.end for call in calls)])
        if ended_at is not None:
            yield Span(SpanKind.TURN, f"Turn {turn + 1}{suffix}", since, ended_at)
            since = ended_at
    if not any(call.goes_on for call in calls):
        yield _last_turn(history, attempt, f"Turn {last + 1}{suffix}", since, end)


def _last_turn(
    history: History, attempt: AttemptRow, label: str, begin: datetime, end: datetime
) -> Span:
    """The turn that runs, or that ended the attempt."""
    outcome, owner = attempt.outcome, history.state.owner
    if outcome is None and owner is not None and owner.dead:
        outcome = "died"
    has_failed = outcome is not None or history.state.status == Status.FAILED
    # The wait after a deferred one says why.
    note = RELEASE_TEXTS[outcome] if outcome not in (None, "deferred") else ""
    if outcome is None and attempt.failures:
        # The page says the message above.
        names = [
            f"upstream {each['upstream']} failed ({each['reason']})" for each in attempt.failures
        ]
        note = "; ".join(dict.fromkeys(names))
    kind = SpanKind.FAILED if has_failed else SpanKind.TURN
    return Span(
        kind, label, begin, max(begin, end), note, goes_on=outcome is None and _is_open(history)
    )
