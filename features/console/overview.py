"""The first page: what waits and runs, and what is wrong, in words."""

import asyncio
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from starlette.responses import Response

from features.console.page import Page
from features.console.responses import find
from features.console.visit import Visit
from features.operator.filter import LAST_ID, Filter
from features.webhooks import queries as webhooks
from models.config.tool_availability import missing_tools
from models.db.database import Pool, fetch_idempotent
from models.db.queries import console, operations
from models.lifecycle import Status
from models.redis.client import REDIS_ERRORS
from models.redis.eviction import memory_problem
from models.time_text import format_seconds
from web.state import AppState

LOOKED_AT = 10_000
"""Open responses, and newest responses, that the figures are made of at most."""
_REFRESHED = 2.0
"""Seconds for which the figures are shown again: many may look at the page."""
_FAILED = Filter(statuses=[Status.FAILED], since=timedelta(hours=1))
_SHOWN = 5
"""Failed responses that are listed."""
_SEARCH = 0.03
"""Seconds in which they are looked for."""
_FULL = 0.9
"""The part of a disk, or of Redis's memory, that may be used."""
_OLD_DELIVERY = 3600.0
"""Seconds after which an event that waits for its endpoint is a problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, in one sentence."""

    text: str
    link: str | None = None
    """below the console"""
    is_note: bool = False
    """It may be intended."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the database says."""

    waiting: int
    oldest_seconds: float
    """of those that wait; 0: none"""
    deferred: int
    running: int
    slots: int | None
    """None: the workers do not say it"""
    workers: int
    quarantine_workers: int
    quarantined: int
    is_partial: bool
    """There are more open responses than were counted."""
    ends: console.RecentEnds
    tokens: console.UsedTokens
    upstream_waits: list[console.UpstreamWait]
    webhooks: webhooks.WebhookState

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

    async def read(self, pool: Pool) -> Figures:
        """The figures, at most two seconds old. Raises what DATABASE_UNAVAILABLE names."""
        async with self._lock:
            is_old = time.monotonic() - self._read_at >= _REFRESHED
            if self._last is None or is_old or self._pool is not pool:
                self._last = await _read(pool)
                self._read_at, self._pool = time.monotonic(), pool
            return self._last


_FIGURES = _Figures()


async def _read(pool: Pool) -> Figures:
    limit = {"max_rows": LOOKED_AT}
    rows = await fetch_idempotent(pool, operations.OLDEST_BACKLOG, limit)
    waiting = [row for row in rows if row.waiting]
    slots = await fetch_idempotent(pool, console.SLOTS, {})
    workers = [kind for kind in slots if kind.kind == "worker"]
    [ends] = await fetch_idempotent(pool, console.RECENT_ENDS, limit)
    [tokens] = await fetch_idempotent(pool, console.RECENT_TOKENS, {})
    [deliveries] = await fetch_idempotent(pool, webhooks.WEBHOOK_STATE, {})
    return Figures(
        waiting=sum(row.responses for row in waiting),
        oldest_seconds=max((max(0.0, row.oldest) for row in waiting), default=0.0),
        deferred=sum(row.responses for row in rows if row.deferred),
        running=sum(kind.running for kind in slots),
        slots=sum(kind.slots or 0 for kind in workers) or None,
        workers=sum(kind.workers for kind in workers),
        quarantine_workers=sum(kind.workers for kind in slots if kind.kind == "quarantine"),
        quarantined=sum(row.responses for row in waiting if row.queue == "quarantine"),
        is_partial=sum(row.responses for row in rows) >= LOOKED_AT,
        ends=ends,
        tokens=tokens,
        upstream_waits=await fetch_idempotent(pool, console.UPSTREAM_WAITS, limit),
        webhooks=deliveries,
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
    found += [_upstream_problem(wait) for wait in figures.upstream_waits]
    state = figures.webhooks
    if state.oldest > _OLD_DELIVERY:
        oldest = format_seconds(state.oldest)
        found.append(Problem(f"{state.waiting} events wait for webhooks, the oldest for {oldest}."))
    if state.failing or state.disabled:
        counts = {"failing": state.failing, "disabled": state.disabled}
        states = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        found.append(Problem(f"Webhook endpoints: {states}.", "/webhooks?failing=1"))
    return found


def _upstream_problem(wait: console.UpstreamWait) -> Problem:
    responses = "1 response waits" if wait.responses == 1 else f"{wait.responses} responses wait"
    since = wait.since.strftime("%H:%M")
    return Problem(
        f"The upstream {wait.upstream} fails ({wait.reason}): {wait.message.rstrip('.')}. "
        f"{responses}; the first began at {since} UTC.",
        "/responses?status=queued&status=in_progress",
    )


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


def _disk_problems(folder: Path | None) -> list[Problem]:
    """Blocks."""
    if folder is None or not folder.exists():
        return []
    disk = shutil.disk_usage(folder)
    if disk.used <= _FULL * disk.total:
        return []
    used = 100 * disk.used // disk.total
    return [Problem(f"The disk of files ({folder}) is {used} % full.")]


async def show(visit: Visit) -> Response:
    """The page."""
    state = visit.state
    figures = await _FIGURES.read(visit.pool)
    problems = _problems_of(figures) + await _redis_problems(state)
    problems += await asyncio.to_thread(_disk_problems, state.settings.files.folder)
    problems += [
        Problem(f"The tool {tool.tool} has no provider: {tool.variable} is not set.", is_note=True)
        for tool in missing_tools(state.settings)
    ]
    return visit.page(
        "overview.html",
        figures=figures,
        problems=problems,
        looked_at=LOOKED_AT,
        failed=(await find(visit.pool, _FAILED, LAST_ID, _SHOWN, _SEARCH)).rows,
    )


async def _without_slash(visit: Visit) -> Response:
    """Sends the browser to the page: `/console/` is what some people type."""
    return visit.redirect()


PAGES = (
    Page("", show),
    Page("/", _without_slash),
)
