"""Shows how far a response is until it has ended: the figures of a GET (web/responses/progress.py),
for any project, without their content."""

import asyncio
import json
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from cli.addresses import resolve_database
from cli.output import clean, print_result, terminal_width, visible_width
from cli.settings import NO_REDIS, child_settings
from features.operator.connection import run as connect_and_run
from features.operator.operations import resolve_id
from features.operator.report import state_text
from models import logs
from models.config.settings import Settings
from models.db.database import Connection, open_pool
from models.db.queries.read import WATCHED_RESPONSES
from models.ids import response_id
from models.lifecycle import TERMINAL
from models.load.budget import SharedBudget
from models.time_text import format_seconds
from models.wire.progress import Progress, WaitsForPrevious, WaitsForSlot, WaitsForUpstream
from web.responses.shown import ShownResponses, Watched

_INTERVAL = 1.0
"""Seconds between two looks."""
_TOKENS_EVERY = 10
"""Looks after which a line shows the tokens, if nothing else has changed."""
_BAR_WIDTH = 24
_PIECE = 6
"""Characters of the piece that moves where the end is not known."""
_CLEAR = "\r\x1b[K"
"""To the beginning of the line, and clear it."""


def run(id_text: str, data: Path | None, *, as_json: bool) -> str | None:
    """Shows the response until it has ended. Returns its last status; None: it was deleted. Raises
    RequestRefused if there is no such response."""

    async def find(database: Connection) -> UUID:
        return await resolve_id(database, id_text)

    watched_id = connect_and_run(data, find)
    settings = child_settings(resolve_database(data).dsn, NO_REDIS)
    logs.configure("error")
    view: _View = _JsonLines() if as_json else _Lines()
    if not as_json and terminal_width() is not None:
        view = _Live()
    return asyncio.run(_watch(settings, watched_id, view))


async def _watch(settings: Settings, watched_id: UUID, view: "_View") -> str | None:
    pool = open_pool(settings, "operator-watch", 1)
    memory = SharedBudget("outputs", sys.maxsize, 0)
    await pool.open()
    try:
        responses = ShownResponses(pool, statement=WATCHED_RESPONSES)
        while True:
            watched = await responses.watch(watched_id, hold=lambda: memory.reserve("operator", 0))
            if watched is None:
                view.end()
                return None
            view.show(watched_id, watched)
            if watched.status in TERMINAL:
                view.end()
                return watched.status
            await asyncio.sleep(_INTERVAL)
    finally:
        await pool.close()


class _View(ABC):
    """How a response is shown."""

    @abstractmethod
    def show(self, watched_id: UUID, watched: Watched) -> None:
        """Shows one look."""

    def end(self) -> None:  # noqa: B027  # only one kind of view leaves something to end
        """There are no more."""


@dataclass(slots=True)
class _JsonLines(_View):
    """One object a line, whenever something has changed."""

    last: str = ""

    def show(self, watched_id: UUID, watched: Watched) -> None:
        progress = watched.progress
        line = json.dumps(
            {
                "id": response_id(watched_id),
                "status": watched.status,
                "progress": None if progress is None else progress.to_json(),
            },
            ensure_ascii=False,
        )
        if line != self.last:
            print_result(line)
        self.last = line


@dataclass(slots=True)
class _Lines(_View):
    """A line for each change, for a file or another program."""

    last: tuple[object, ...] = ()
    tokens: int = 0
    looks: int = 0
    """since the last line"""

    def show(self, watched_id: UUID, watched: Watched) -> None:
        facts = _facts(watched)
        tokens = 0 if watched.progress is None else watched.progress.work.output_tokens
        self.looks += 1
        if facts == self.last and (tokens == self.tokens or self.looks < _TOKENS_EVERY):
            return
        self.last, self.tokens, self.looks = facts, tokens, 0
        words = [response_id(watched_id), watched.status, format_seconds(watched.age)]
        print_result("  ".join([*words, *filter(None, [text(watched)])]))


@dataclass(slots=True)
class _Live(_View):
    """One line with a bar, written again and again."""

    looks: int = 0
    first_positions: list[int] = field(default_factory=list)

    def show(self, watched_id: UUID, watched: Watched) -> None:
        self.looks += 1
        parts = [bar(self._share(watched), self.looks), state_text(watched.status)]
        parts += filter(None, [format_seconds(watched.age), text(watched)])
        head = response_id(watched_id)[:21]
        width = (terminal_width() or 80) - 1
        line = _cut(head, parts, width)
        sys.stdout.write(f"{_CLEAR}{line}")
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _share(self, watched: Watched) -> float | None:
        """How much of the bar is full; None: the end is not known."""
        progress = watched.progress
        if progress is None:
            return 1.0
        if isinstance(progress.waits_for, WaitsForSlot):
            position = progress.waits_for.position
            if position is None:
                return 0.0
            self.first_positions = self.first_positions or [position]
            return max(0.0, 1 - position / max(position, self.first_positions[0], 1))
        if watched.max_output_tokens:
            return min(1.0, progress.work.output_tokens / watched.max_output_tokens)
        return None


def bar(share: float | None, step: int) -> str:
    """A bar that is full to this share; None: a piece of it moves with each step."""
    if share is not None:
        full = round(share * _BAR_WIDTH)
        return f"[{'█' * full}{'·' * (_BAR_WIDTH - full)}]"
    room = _BAR_WIDTH - _PIECE
    at = abs(step % (2 * room) - room)
    return f"[{'·' * at}{'█' * _PIECE}{'·' * (room - at)}]"


def text(watched: Watched) -> str:
    """What it waits for and has done, in words. What may be long is at the end."""
    progress = watched.progress
    if progress is None:
        return ""
    words = ", ".join(
        filter(None, [_wait_text(progress, watched.now), _work_text(watched, progress)])
    )
    wait = progress.waits_for
    if isinstance(wait, WaitsForUpstream) and wait.last_error is not None:
        return f"{words}: {clean(wait.last_error)}"
    return words


def _wait_text(progress: Progress, now: float) -> str:
    match progress.waits_for:
        case WaitsForSlot() as wait:
            place = f"more than {wait.position_above}" if wait.position is None else wait.position
            at = wait.expected_start_at
            start = "" if at is None else f", starts in about {format_seconds(max(0, at - now))}"
            return f"waits for a slot, position {place}{start}"
        case WaitsForUpstream() as wait:
            since = "" if wait.since is None else f" for {format_seconds(max(0, now - wait.since))}"
            tries = "" if wait.tries is None else f" ({wait.tries} tries)"
            next_try = format_seconds(max(0, wait.next_try_at - now))
            return f"waits for its upstream{since}{tries}, next try in {next_try}"
        case WaitsForPrevious(response_id):
            return f"waits for {response_id}"
    return ""


def _work_text(watched: Watched, progress: Progress) -> str:
    work = progress.work
    if progress.waits_for is not None and not work.output_tokens:
        return ""
    limit = f" of at most {watched.max_output_tokens}" if watched.max_output_tokens else ""
    estimated = f" ({work.estimated_tokens} estimated)" if work.estimated_tokens else ""
    calls = f"{work.calls_done} tool calls done" if work.calls_done or work.calls_open else ""
    still_open = f"{work.calls_open} open" if work.calls_open else ""
    attempts = f"attempt {work.attempts}" if work.attempts > 1 else ""
    turns = f"{work.turns} turns" if work.turns else ""
    tokens = f"{work.output_tokens}{limit} output tokens{estimated}"
    return ", ".join(filter(None, [tokens, turns, calls, still_open, attempts]))


def _facts(watched: Watched) -> tuple[object, ...]:
    """What a line is written for."""
    if watched.progress is None:
        return (watched.status,)
    work, waits_for = watched.progress.work, watched.progress.waits_for
    position = tries = None
    if isinstance(waits_for, WaitsForSlot):
        position = waits_for.position
    elif isinstance(waits_for, WaitsForUpstream):
        tries = waits_for.tries
    done = (work.turns, work.calls_done, work.calls_open, work.attempts)
    return (watched.status, type(waits_for), position, tries, *done)


def _cut(head: str, parts: list[str], width: int) -> str:
    """The parts in one line. Only the last one is cut, which has no colours."""
    *begin, last = parts
    line = "  ".join([head, *begin])
    room = width - visible_width(line) - 2
    if room < 1:
        return line
    return f"{line}  {last if len(last) <= room else last[: room - 1] + '…'}"
