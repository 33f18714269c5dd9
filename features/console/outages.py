"""The upstreams that fail now: one sentence for each, with the cause and what waits for it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from redis.asyncio import Redis

from features.console.page import Problem
from features.operator.diagnosis import cause_text
from models.db.database import Pool, fetch_idempotent
from models.db.queries import console
from models.db.queries.common import UPSTREAM_FULL
from models.ids import PROJECT, parse_admin_id
from models.lifecycle import OperatorStatus
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import OpenCircuit, UpstreamState, read_states
from models.time_text import format_seconds, seconds_between

MAX_COUNTED = 10_000
"""Responses of one upstream that are counted."""
_MAX_MODELS = 3
_UNTRIED = "Nothing has called it lately; the next call is a try."


@dataclass(frozen=True, slots=True)
class Outage:
    """An upstream that fails, or is full: what waits for it, and the circuits that are open."""

    upstream: str
    wait: console.UpstreamWait | None
    """None: nothing waits"""
    circuits: Sequence[OpenCircuit]

    @property
    def is_full(self) -> bool:
        """It does not fail: as many calls run there as are allowed."""
        is_only_full = self.wait is not None and self.wait.reason == UPSTREAM_FULL
        return is_only_full and not self.circuits

    @property
    def is_over(self) -> bool:
        """Nothing waits for it and nothing calls it: it may be well again."""
        return self.wait is None and not any(each.seconds for each in self.circuits)

    @property
    def since(self) -> datetime | None:
        """The first failure that still has consequences."""
        times = [datetime.fromtimestamp(each.since, UTC) for each in self.circuits if each.since]
        if self.wait is not None:
            times.append(self.wait.since)
        return min(times, default=None)

    @property
    def link(self) -> str:
        """Below the console: exactly what waits."""
        if self.wait is None:
            return "/upstreams"
        wanted = {"status": OperatorStatus.RETRYING.value, "upstream": self.upstream}
        return f"/responses?{urlencode(wanted)}"

    def problem(self, now: datetime) -> Problem:
        """The sentence for operators."""
        return Problem(self.text(now), self.link, is_note=self.is_full or self.is_over)

    def text(self, now: datetime) -> str:
        """As `gpu-2 fails since 13:07 UTC (HTTP 500: out of memory). 3 responses of pay wait. Next
        try in 14 s.`"""
        since = "" if self.since is None else f" since {_clock_time(self.since, now)}"
        if self.is_over:
            # A circuit closes only when a call succeeds.
            return f"{self.upstream} has failed{self._models}{since} ({self._cause}). {_UNTRIED}"
        does = "is at its limit of calls" if self.is_full else f"fails{self._models}"
        cause = "" if self.is_full else f" ({self._cause})"
        return f"{self.upstream} {does}{since}{cause}. {self._waiting} {self._next_try(now)}"

    @property
    def _models(self) -> str:
        """If it fails for some models only; what waits may be of others."""
        if self.wait is not None:
            return ""
        models = {each.model for each in self.circuits}
        if not models or None in models or len(models) > _MAX_MODELS:
            return ""
        return f" for {', '.join(sorted(filter(None, models)))}"

    @property
    def _cause(self) -> str:
        wait = self.wait
        if wait is None or wait.message is None:
            return self.circuits[0].reason if self.circuits else "the failure is not stored"
        return cause_text(wait.message)

    @property
    def _waiting(self) -> str:
        if self.wait is None:
            return "No background response waits."
        count, names = self.wait.responses, self.wait.projects
        more = "+" if count >= MAX_COUNTED else ""
        whose = f"{self.wait.project_count} projects"
        if self.wait.project_count <= len(names):
            whose = ", ".join(names)
        waits = "response of {} waits" if count == 1 else "responses of {} wait"
        return f"{count}{more} {waits.format(whose)}."

    def _next_try(self, now: datetime) -> str:
        if self.wait is None:
            seconds = min(each.seconds for each in self.circuits if each.seconds)
        elif self.wait.next_try_at is None:
            return "It is tried now."
        else:
            seconds = seconds_between(now, self.wait.next_try_at)
        return f"Next try in {format_seconds(seconds)}."


def _clock_time(at: datetime, now: datetime) -> str:
    """The time; with the day if that is another one."""
    is_today = now - at < timedelta(days=1) and now.date() == at.astimezone(UTC).date()
    return at.astimezone(UTC).strftime("%H:%M UTC" if is_today else "%d %b %H:%M UTC")


def outages_of(
    waits: Sequence[console.UpstreamWait], states: Sequence[UpstreamState]
) -> list[Outage]:
    """One for each upstream that fails or is full, those with most that waits first."""
    circuits = defaultdict[str, list[OpenCircuit]](list)
    for state in states:
        circuits[state.name] += state.circuits
    found = [Outage(wait.upstream, wait, circuits.pop(wait.upstream, ())) for wait in waits]
    return found + [Outage(name, None, each) for name, each in sorted(circuits.items()) if each]


async def read_waits(pool: Pool) -> list[console.UpstreamWait]:
    """What waits for upstreams that have failed."""
    return await fetch_idempotent(pool, console.UPSTREAM_WAITS, {"max_rows": MAX_COUNTED})


async def read_outages(pool: Pool, redis: Redis) -> list[Outage]:
    """The upstreams that fail now. Without Redis only those for which something waits."""
    workers = await fetch_idempotent(pool, console.LIVE_WORKER_IDS, {})
    states: list[UpstreamState] = []
    with suppress(*REDIS_ERRORS):
        states += [state for written in await read_states(redis, workers) for state in written]
    return outages_of(await read_waits(pool), states)


async def project_names(pool: Pool, circuits: Sequence[OpenCircuit]) -> Mapping[str, str]:
    """The names of the projects whose calls are refused, by id."""
    ids: dict[str, UUID] = {}
    for circuit in circuits:
        if circuit.project is not None:
            identifier = parse_admin_id(PROJECT, circuit.project)
            if identifier is not None:
                ids[circuit.project] = identifier
    if not ids:
        return {}
    rows = await fetch_idempotent(pool, console.PROJECT_NAMES, {"ids": list(ids.values())})
    known = {row.id: row.name for row in rows}
    return {text: known[value] for text, value in ids.items() if value in known}
