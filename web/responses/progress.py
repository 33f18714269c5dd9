"""How far an open response is, and when its client should ask again (docs/background.md).

What it has done follows from its row and from the fold of its events, so it costs no statement. The
place in line costs one statement a second for each line: a project's responses in one lane. That of
a response that waits for its upstream costs one look at its last failure.
"""

import asyncio
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from models.db.database import Pool, fetch_idempotent
from models.db.queries.line import LINE_PLACES, MAX_COUNTED
from models.db.queries.progress import HELD_CALLS, LAST_FAILURE
from models.db.queries.read import OpenFigures, ShownResponseRow
from models.ids import response_id
from models.load.line_pace import LinePace
from models.ownership.timeline import attempts_on_timeline
from models.wire.events import Item
from models.wire.progress import (
    Progress,
    Wait,
    WaitsForPrevious,
    WaitsForSlot,
    WaitsForUpstream,
    Work,
    count_calls,
    estimated_tokens,
)
from web.http.json_responses import SHORTEST_POLL
from web.responses.running import RunningOutput

_FRESH = 1.0
"""Seconds for which a look at a line counts."""
_MAX_LINES = 256
"""Lines that one process keeps, each with the places of its first responses."""
_YEAR = 365 * 86_400.0
"""Seconds. One that waits for its previous response is deferred for longer (lifecycle.NEVER)."""
_LATEST = 7 * 86_400
"""Seconds: a start that is expected later than this is not known."""

_LONGEST = 10.0
_LONGEST_WAIT = 60.0
"""Seconds. While it waits nothing changes, unless it is cancelled."""
_SHARE = 0.1
"""of the time that it has taken so far: so much later than its end is it seen, at most"""
_WRITING = 2.0
"""Seconds, while it writes a message, which is the last thing that most responses do."""


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """What one read has found of a response that has not ended."""

    id: UUID
    project: UUID
    background: bool
    is_owned: bool
    now: float
    """on the database's clock, in seconds since the epoch"""
    figures: OpenFigures
    work: Work
    shown_items: int
    """of its output"""
    may_hold_calls: bool
    """A call of a tool runs, and the stream may hold others back behind it."""
    previous: UUID | None = None
    """The response that it continues."""

    @classmethod
    def of(
        cls,
        project: UUID,
        row: ShownResponseRow,
        items: Sequence[Item],
        output: RunningOutput | None,
    ) -> "OpenResponse":
        """`output`: the fold of its events; None: it has not begun."""
        figures = row.open_figures
        done, still_open = count_calls(items)
        reported = None if row.usage is None else row.usage["output_tokens"]
        size = 0 if output is None else output.written_size(with_stored=reported is None)
        estimated = estimated_tokens(size)
        last = items[-1] if items else None
        return cls(
            id=row.id,
            project=project,
            background=row.background,
            is_owned=row.worker is not None,
            now=row.created_at + figures.age,
            figures=figures,
            work=Work(
                turns=figures.turns,
                calls_done=done,
                calls_open=still_open,
                output_tokens=(reported or 0) + estimated,
                estimated_tokens=estimated,
                attempts=attempts_on_timeline(row.attempt) if row.attempt else 0,
                is_writing=last is not None
                and (last["type"], last.get("status")) == ("message", "in_progress"),
            ),
            shown_items=len(items),
            may_hold_calls=still_open > 0 and row.checkpoint_number >= 0,
            previous=row.previous_response_id,
        )


def poll_seconds(found: OpenResponse, waits_for: Wait | None) -> float:
    """When it is worth asking again."""
    figures = found.figures
    taken = figures.age if figures.run_seconds is None else figures.run_seconds
    usual = min(max(taken * _SHARE, SHORTEST_POLL), _LONGEST)
    match waits_for:
        case WaitsForUpstream():
            return max(usual, min(figures.pause or 0, _LONGEST_WAIT))
        case WaitsForSlot(expected_start_at=int(expected)):
            return min(max((expected - found.now) / 2, SHORTEST_POLL), _LONGEST_WAIT)
        case WaitsForSlot(position_above=int()):
            return _LONGEST
    return min(usual, _WRITING) if found.work.is_writing else usual


class ProgressReads:
    """Reads what open responses wait for, for one process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lines: OrderedDict[_LineKey, _Line] = OrderedDict()
        """Those that were used last."""

    async def of(self, found: OpenResponse) -> Progress:
        """The progress of this response. One that runs costs no statement, unless a call of a tool
        runs."""
        work = found.work
        if found.may_hold_calls:
            values = {"id": found.id, "shown": found.shown_items}
            [held] = await fetch_idempotent(self._pool, HELD_CALLS, values)
            work = replace(
                work, calls_done=work.calls_done + held.done, calls_open=work.calls_open + held.open
            )
        return Progress(work, await self._wait_of(found))

    async def _wait_of(self, found: OpenResponse) -> Wait | None:
        figures = found.figures
        if found.is_owned:
            return None
        pause = figures.pause or 0
        if pause > _YEAR:
            return None if found.previous is None else WaitsForPrevious(response_id(found.previous))
        if pause > 0:
            return await self._deferral(found, pause)
        if figures.place_at is None:
            return None
        key = _LineKey(found.project, figures.lane, found.background)
        line = self._lines.setdefault(key, _Line())
        self._lines.move_to_end(key)
        if len(self._lines) > _MAX_LINES:
            self._lines.popitem(last=False)
        await line.refresh(self._pool, key)
        return line.wait_at(figures.place_at, found.now)

    async def _deferral(self, found: OpenResponse, pause: float) -> WaitsForUpstream:
        figures, next_try_at = found.figures, round(found.now + pause)
        if figures.retrying_since is None:
            return WaitsForUpstream(next_try_at)
        failures = await fetch_idempotent(self._pool, LAST_FAILURE, {"id": found.id})
        return WaitsForUpstream(
            next_try_at,
            since=int(figures.retrying_since),
            tries=figures.failed_tries,
            last_error=failures[0] if failures else None,
        )


@dataclass(frozen=True, slots=True)
class _LineKey:
    """A line: the responses of a project that wait in one lane."""

    project: UUID
    lane: int
    background: bool


@dataclass(slots=True, eq=False)
class _Line:
    """What a process knows of a line."""

    places: "array[float]" = field(default_factory=lambda: array("d"))
    pace: LinePace = field(default_factory=LinePace)
    read_at: float = float("-inf")
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self, pool: Pool, key: _LineKey) -> None:
        """Reads the line unless somebody has done so in the last second."""
        async with self.reading:
            if time.monotonic() - self.read_at < _FRESH:
                return
            values = {"project": key.project, "lane": key.lane, "background": key.background}
            [places] = await fetch_idempotent(pool, LINE_PLACES, values)
            self.places, self.read_at = array("d", places), time.monotonic()
            is_whole = len(places) <= MAX_COUNTED
            self.pace.look(self.places, self.read_at, is_whole=is_whole)

    def wait_at(self, place_at: float, now: float) -> WaitsForSlot:
        """What a response with this place waits for."""
        before = bisect_left(self.places, place_at)
        if before > MAX_COUNTED:
            return WaitsForSlot(None, position_above=MAX_COUNTED)
        seconds = self.pace.seconds_for(before + 1)
        if seconds is None or seconds > _LATEST:
            return WaitsForSlot(before + 1)
        return WaitsForSlot(before + 1, expected_start_at=round(now + seconds))
