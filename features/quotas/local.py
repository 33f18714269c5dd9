"""The quotas of projects as one process judges them alone, while Redis is away.

Each process gives each project its share of the rates: a project that uses one process only is
refused earlier, but all processes together never admit more than its limit (plus one request or
connection each). What the database counts is read from there, and what this process has admitted
since is added: the others may admit more in the seconds between two reads.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from models.projects.quotas import WINDOW, Limits, Quota, Usage
from models.redis.quota_counters import (
    CONNECTION_TIME,
    CountersUnavailable,
    Decision,
    Demand,
    QuotaCounters,
)

USAGE_TIME = 2.0
"""Seconds for which what the database said is used."""
_MAX_PROJECTS = 10_000
"""Above it all are forgotten."""


@dataclass(slots=True)
class _Project:
    requests: float = 0.0
    """when the requests until now no longer count, in monotonic seconds"""
    tokens: float = 0.0
    usage: Usage = field(default_factory=Usage)
    read_at: float = float("-inf")
    """when `usage` was read"""
    responses: dict[UUID, int] = field(default_factory=dict)
    """what was admitted since, and its reserved tokens"""
    stored_bytes: int = 0
    """as Redis counted them last, or as they were measured, and what was admitted since"""
    is_stored_known: bool = False
    """`stored_bytes` is more than what was admitted here"""
    conversations: int = 0


class LocalQuotas:
    """The quotas of all projects in this process."""

    def __init__(self) -> None:
        self._projects: dict[UUID, _Project] = {}

    def needs_usage(self, project: UUID) -> bool:
        """Whether `set_usage` must be called before the next decision."""
        return time.monotonic() - self._of(project).read_at > USAGE_TIME

    def set_usage(self, project: UUID, usage: Usage) -> None:
        """What the database says now."""
        of_project = self._of(project)
        of_project.usage, of_project.read_at = usage, time.monotonic()
        of_project.responses.clear()
        of_project.conversations = 0

    def needs_stored_bytes(self, project: UUID) -> bool:
        """Whether nobody has counted what the project stores since this process has started. True
        once: the caller measures it, and calls `set_stored_bytes`."""
        of_project = self._of(project)
        is_known, of_project.is_stored_known = of_project.is_stored_known, True
        return not is_known

    def set_stored_bytes(self, project: UUID, stored: int | None) -> None:
        """So much is stored besides what was admitted here; None: it could not be measured."""
        of_project = self._of(project)
        of_project.stored_bytes += stored or 0
        of_project.is_stored_known = stored is not None

    def observe(self, project: UUID, decision: Decision) -> None:
        """Takes over the rates as Redis has counted them."""
        of_project, now = self._of(project), time.monotonic()
        of_project.requests, of_project.tokens = now + decision.requests, now + decision.tokens
        of_project.stored_bytes, of_project.is_stored_known = decision.stored_bytes, True

    def decide(
        self,
        project: UUID,
        limits: Limits,
        demand: Demand,
        own: Mapping[Quota, int],
        processes: int,
    ) -> Decision:
        """Decides and counts. `own`: the open connections; `processes`: those that share the rates.

        The rules are those of the script ADMIT.
        """
        of_project, now = self._of(project), time.monotonic()
        share = limits.share(processes)
        requests, tokens = max(now, of_project.requests), max(now, of_project.tokens)
        request_cost = _cost(demand.requests, share.requests_per_minute)
        token_cost = _cost(min(demand.tokens, share.tokens_per_minute), share.tokens_per_minute)
        refused = _refusing_count(of_project, share, demand, own)
        wait = 0.0
        if refused is None and requests + request_cost - now > WINDOW and request_cost:
            refused, wait = Quota.requests_per_minute, requests + request_cost - now - WINDOW
        elif refused is None and tokens + token_cost - now > WINDOW and token_cost:
            refused, wait = Quota.tokens_per_minute, tokens + token_cost - now - WINDOW
        if refused is None:
            requests, tokens = requests + request_cost, tokens + token_cost
            of_project.requests, of_project.tokens = requests, tokens
            if demand.response is not None:
                of_project.responses[demand.response] = demand.tokens
            of_project.stored_bytes += demand.bytes
            of_project.conversations += demand.conversations
        return Decision(refused, wait, requests - now, tokens - now)

    def release(self, project: UUID, response: UUID) -> None:
        """The response was not stored, or has ended."""
        self._of(project).responses.pop(response, None)

    def seconds_unused(self, project: UUID) -> tuple[float, float]:
        """How long until the rates of requests and of tokens are unused, as this process knows."""
        of_project, now = self._of(project), time.monotonic()
        return max(0.0, of_project.requests - now), max(0.0, of_project.tokens - now)

    def _of(self, project: UUID) -> _Project:
        of_project = self._projects.get(project)
        if of_project is None:
            if len(self._projects) >= _MAX_PROJECTS:
                self._projects.clear()
            of_project = self._projects[project] = _Project()
        return of_project


def _cost(amount: int, per_minute: int) -> float:
    return amount * WINDOW / per_minute if per_minute else 0.0


def _refusing_count(
    of_project: _Project, limits: Limits, demand: Demand, own: Mapping[Quota, int]
) -> Quota | None:
    """The first quota, other than a rate, that refuses the request."""
    usage, admitted = of_project.usage, len(of_project.responses)
    day, month = usage.tokens
    reserved = sum(of_project.responses.values())
    responses = int(demand.response is not None)
    needs = (
        # A budget is judged without the request itself: what it will use is only estimated.
        (Quota.tokens_per_day, day + reserved, min(demand.tokens, 1)),
        (Quota.tokens_per_month, month + reserved, min(demand.tokens, 1)),
        (Quota.stored_bytes, of_project.stored_bytes, demand.bytes),
        (
            Quota.conversations,
            usage.conversations + of_project.conversations,
            demand.conversations,
        ),
        (Quota.running, len(usage.open) + admitted, responses),
        (Quota.queued, len(usage.waiting) + admitted, responses),
        (Quota.open_streams, own.get(Quota.open_streams, 0), demand.open_streams),
        (Quota.open_sockets, own.get(Quota.open_sockets, 0), demand.open_sockets),
    )
    for quota, used, more in needs:
        limit: int = getattr(limits, quota.name)
        if limit and more and used + more > limit:
            return quota
    return None


_REPORT_INTERVAL = CONNECTION_TIME / 3


class OpenConnection:
    """A stream or socket of a project with a limit."""

    __slots__ = ("_connections", "_is_open", "_kind", "_project")

    def __init__(self, connections: "OpenConnections", project: UUID, kind: Quota) -> None:
        self._connections = connections
        self._project = project
        self._kind = kind
        self._is_open = True

    def close(self) -> None:
        """It does not count any more. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._connections.remove(self._project, self._kind)


class OpenConnections:
    """Counts them, and reports the counts to the other processes."""

    def __init__(self, counters: QuotaCounters) -> None:
        self._counters = counters
        self._counts: Counter[tuple[UUID, Quota]] = Counter()
        self._changed: set[tuple[UUID, Quota]] = set()
        self._has_changed = asyncio.Event()

    def of(self, project: UUID) -> dict[Quota, int]:
        """How many the project has open here."""
        kinds = (Quota.open_streams, Quota.open_sockets)
        return {kind: self._counts[project, kind] for kind in kinds}

    def add(self, project: UUID, kind: Quota) -> OpenConnection:
        """One more, which the caller closes."""
        self._counts[project, kind] += 1
        return OpenConnection(self, project, kind)

    def remove(self, project: UUID, kind: Quota) -> None:
        """One less."""
        self._counts[project, kind] -= 1
        if not self._counts[project, kind]:
            del self._counts[project, kind]
        self._changed.add((project, kind))
        self._has_changed.set()

    async def run(self) -> None:
        """Reports what was closed at once, and all that is open from time to time: the others
        forget a process that reports nothing. Never returns."""
        while True:
            try:
                async with asyncio.timeout(_REPORT_INTERVAL):
                    await self._has_changed.wait()
            except TimeoutError:
                self._changed.update(self._counts)
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            for project, kind in changed:
                await self._report(project, kind)

    async def _report(self, project: UUID, kind: Quota) -> None:
        try:
            count = self._counts[project, kind]
            await self._counters.report_connections(project, kind, count)
        except CountersUnavailable:
            self._changed.add((project, kind))
