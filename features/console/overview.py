"""The first page: what waits and runs, and what is wrong, in words."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from features.console.capacity import Outage, read_outages
from features.console.page import Page, Problem, Visit
from features.console.responses import find
from features.operator.filter import LAST_ID, Filter
from models.db.database import Pool, fetch_idempotent
from models.db.queries import console, operations
from models.features import feature_parts
from models.lifecycle import OperatorStatus, Status
from models.redis.client import REDIS_ERRORS, memory_problem
from web.state import AppState

LOOKED_AT = 10_000
"""Open responses, and newest responses, that the figures are made of at most."""
_REFRESHED = 2.0
"""Seconds for which the figures are shown again: many may look at the page."""
_FAILED = Filter(statuses=[OperatorStatus.FAILED], since=timedelta(hours=1))
_SHOWN = 5
"""Failed responses that are listed."""
_SEARCH = 0.03
"""Seconds in which they are looked for."""
_FULL = 0.9
"""The part of Redis's memory that may be used."""
_MODEL_WAIT = 1.0
"""Seconds in which the upstreams are asked for a model that the first request can name."""
_PROBLEMS: list[Callable[[AppState], Awaitable[list[Problem]]]] = [
    part.problems for part in feature_parts("pages") if hasattr(part, "problems")
]

_FIRST_MODELS: list[Callable[[AppState], Awaitable[str | None]]] = [
    part.first_model for part in feature_parts("pages") if hasattr(part, "first_model")
]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the database says, and the problems that features know of."""

    queued: int
    awaiting: int
    """of them: those that wait for their previous response"""
    retrying: int
    running: int
    unowned: int
    """in progress, and waiting for a worker"""
    oldest_seconds: float
    """since when a worker might have claimed the one that waits longest; 0: none waits"""
    slots: int | None
    """None: the workers do not say it"""
    workers: int
    quarantine_workers: int
    quarantined: int
    is_partial: bool
    """There are more open responses than were counted."""
    ends: console.RecentEnds
    tokens: console.UsedTokens
    outages: list[Outage]
    problems_of_features: list[Problem]

    @property
    def tokens_per_minute(self) -> int:
        """Of the last five minutes."""
        return round((self.tokens.input_tokens + self.tokens.output_tokens) / 5)


class _Figures:
    """The last figures of this process."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._last: Figures | None = None
        self._pool: Pool | None = None
        self._lock = asyncio.Lock()

    async def read(self, state: AppState) -> Figures:
        """The figures, at most two seconds old. Raises what DATABASE_UNAVAILABLE names."""
        async with self._lock:
            is_old = time.monotonic() - self._read_at >= _REFRESHED
            if self._last is None or is_old or self._pool is not state.pool:
                self._last = await _read(state)
                self._read_at, self._pool = time.monotonic(), state.pool
            return self._last


_FIGURES = _Figures()


async def _read(state: AppState) -> Figures:
    pool = state.pool
    limit = {"max_rows": LOOKED_AT}
    rows = await fetch_idempotent(pool, operations.OLDEST_BACKLOG, limit)
    in_line = [row for row in rows if row.is_in_line]
    queued = [row for row in rows if row.status == Status.QUEUED and not row.retrying]
    outages = await read_outages(pool, state.redis)
    slots = await fetch_idempotent(pool, console.SLOTS, {})
    workers = [kind for kind in slots if kind.kind == "worker"]
    [ends] = await fetch_idempotent(pool, console.RECENT_ENDS, limit)
    [tokens] = await fetch_idempotent(pool, console.RECENT_TOKENS, {})
    return Figures(
        queued=sum(row.responses for row in queued),
        awaiting=sum(row.responses for row in queued if not row.waiting),
        retrying=sum(each.wait.responses for each in outages if each.wait is not None),
        running=sum(kind.running - kind.retrying for kind in slots),
        unowned=sum(row.responses for row in in_line if row.status != Status.QUEUED),
        oldest_seconds=max((row.oldest for row in in_line), default=0.0),
        slots=sum(kind.slots or 0 for kind in workers) or None,
        workers=sum(kind.workers for kind in workers),
        quarantine_workers=sum(kind.workers for kind in slots if kind.kind == "quarantine"),
        quarantined=sum(row.responses for row in in_line if row.queue == "quarantine"),
        is_partial=sum(row.responses for row in rows) >= LOOKED_AT,
        ends=ends,
        tokens=tokens,
        outages=outages,
        problems_of_features=[each for problems in _PROBLEMS for each in await problems(state)],
    )


def _problems_of(figures: Figures) -> list[Problem]:
    """What the figures show."""
    found = []
    if not figures.workers:
        found.append(Problem("No worker is alive: nothing runs."))
    if figures.quarantined and not figures.quarantine_workers:
        found.append(
            Problem(
                f"{figures.quarantined} responses whose workers crashed wait for a quarantine "
                "worker, and none is alive.",
                "/responses?status=queued&status=in_progress",
            )
        )
    now = datetime.now(UTC)
    found += [outage.problem(now) for outage in figures.outages]
    return found + figures.problems_of_features


async def _redis_problems(state: AppState) -> list[Problem]:
    with suppress(*REDIS_ERRORS):
        # The network may have lost this connection since the last look. The next one is new.
        await state.redis.ping()
    try:
        problem = await memory_problem(state.redis)
        memory = await state.redis.info("memory")
    except REDIS_ERRORS as error:
        reason = type(error).__name__
        return [
            Problem(f"Redis does not answer ({reason}): responses run, but start and show later.")
        ]
    found = [] if problem is None else [Problem(f"Redis: {problem}.")]
    if not state.bus.healthy:
        found.append(Problem("Redis delivers no events to this web process; it reads the log."))
    limit, used = memory.get("maxmemory", 0), memory.get("used_memory", 0)
    if limit and used > _FULL * limit:
        found.append(Problem(f"Redis uses {100 * used // limit} % of its memory."))
    return found


async def _model_to_try(state: AppState) -> str:
    """A model that clients can name; `MODEL` if none is known soon."""
    asked = [asyncio.ensure_future(first_model(state)) for first_model in _FIRST_MODELS]
    answered = (await asyncio.wait(asked, timeout=_MODEL_WAIT))[0] if asked else set()
    return next((name for each in answered if (name := each.result())), "MODEL")


async def show(visit: Visit) -> Response:
    """The page."""
    state = visit.state
    figures = await _FIGURES.read(state)
    problems = _problems_of(figures) + await _redis_problems(state)
    problems += [
        Problem(f"The tool {tool} has no provider: {variable} is not set.", is_note=True)
        for tool, variable in state.settings.missing_tools.items()
    ]
    return visit.page(
        "overview.html",
        figures=figures,
        problems=problems,
        looked_at=LOOKED_AT,
        model_to_try=None if figures.ends.looked_at else await _model_to_try(state),
        failed=(await find(visit.pool, _FAILED, LAST_ID, _SHOWN, _SEARCH)).rows,
    )


async def _without_slash(visit: Visit) -> Response:
    """Sends the browser to the page: `/console/` is what some people type."""
    return visit.redirect()


PAGES = (
    Page("", show, menu="Overview"),
    Page("/", _without_slash),
)
