"""What projects use and store, read from the database, and the correction of the counters in
Redis."""

import asyncio
import time
from collections import defaultdict
from datetime import UTC, datetime
from uuid import UUID

import structlog

from models.db.arrays import Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.quotas import (
    CONVERSATIONS,
    ENDED_RESPONSES,
    OPEN_RESPONSES,
    STORED_IN_CONVERSATIONS,
    STORED_WITH_RESPONSES,
)
from models.db.queries.usage import USED_TOKENS
from models.db.statement import Query, RowT
from models.ownership.grouping import GroupedRequests
from models.ownership.lease import DatabaseClock
from models.projects.quotas import Limits, Usage
from models.redis.quota_counters import CountersUnavailable, Period, QuotaCounters

logger = structlog.get_logger()

_BUDGET_TIME = 60.0
"""Seconds after which the tokens of the day and month are read again: their sums may be long."""
_MAX_PROJECTS = 10_000
"""Above it all are forgotten."""
_BUDGETS = ("tokens_per_day", "tokens_per_month")
_Question = tuple[UUID, Limits]
"""A project, and what is limited."""
_CONFIRM_GAP = 0.05
"""Seconds between two looks for responses that have just ended, while many requests are refused."""
_PAUSE_FACTOR = 4
"""The pause after a statement is so many times as long as it took."""


class ProjectUsage:
    """Reads the usage of projects. Those that are asked for together share statements."""

    def __init__(self, pool: Pool, counters: QuotaCounters, clock: DatabaseClock) -> None:
        self._pool = pool
        self._counters = counters
        self._clock = clock
        self._reads: GroupedRequests[_Question, Usage] = GroupedRequests(self._read_group, gap=0)
        self._confirmations: GroupedRequests[UUID, list[UUID]] = GroupedRequests(
            self._ended_of, gap=_CONFIRM_GAP
        )
        self._budgets: dict[UUID, tuple[float, tuple[int, int]]] = {}
        """When the tokens of a day and month were read, and what they were."""
        self.web_processes = 1
        """Live web processes, when something was read last."""

    @property
    def now(self) -> int:
        """Seconds since the epoch, by the database's clock."""
        return self._clock.now()

    @property
    def period(self) -> Period:
        """This day and month, by the database's clock."""
        return Period.at(self._clock.now())

    async def read(self, project: UUID, limits: Limits) -> Usage:
        """What the project uses now, as far as it is limited. Raises what DATABASE_UNAVAILABLE
        names."""
        return await self._reads.submit((project, limits))

    async def correct(self, project: UUID, limits: Limits) -> None:
        """Replaces the counters of the project by what the database says. Raises
        CountersUnavailable, and what DATABASE_UNAVAILABLE names."""
        counted = await self._counters.snapshot(project)
        usage = await self.read(project, limits)
        await self._counters.correct(project, counted, usage, self.period)

    async def ended(self, project: UUID) -> list[UUID]:
        """Responses of the project that have ended and still count: a client that polls may see an
        end before the worker has reported it to Redis. Empty if Postgres is away. Raises
        CountersUnavailable."""
        try:
            return await self._confirmations.submit(project)
        except DATABASE_UNAVAILABLE as error:
            logger.info("quota_not_confirmed", project=str(project), error=str(error).strip())
            return []

    async def _ended_of(self, projects: list[UUID]) -> list[list[UUID]]:
        counted = {each: await self._counters.counted(each) for each in set(projects)}
        ids = Uuids([id_ for ids in counted.values() for id_ in ids])
        ended = set(await fetch_idempotent(self._pool, ENDED_RESPONSES, {"ids": ids}))
        return [[id_ for id_ in counted[each] if id_ in ended] for each in projects]

    def forget(self, project: UUID) -> None:
        """The counters of the project are lost: all of them are to be read."""
        self._budgets.pop(project, None)

    async def correct_if_available(self, project: UUID, limits: Limits) -> None:
        """`correct`, unless Redis or Postgres is away: then the next request does it."""
        try:
            await self.correct(project, limits)
        except (CountersUnavailable, *DATABASE_UNAVAILABLE) as error:
            logger.info("quota_not_corrected", project=str(project), error=str(error).strip())

    async def _read_group(self, questions: list[_Question]) -> list[Usage]:
        processes = await fetch_idempotent(self._pool, LIVE_WORKERS, {})
        self.web_processes = max(1, sum(row.live for row in processes if row.kind == "web"))
        open_ids: dict[UUID, list[UUID]] = defaultdict(list)
        waiting_ids: dict[UUID, list[UUID]] = defaultdict(list)
        young_ids: dict[UUID, list[UUID]] = defaultdict(list)
        for row in await self._fetch(OPEN_RESPONSES, questions, ("running", "queued", *_BUDGETS)):
            open_ids[row.project_id].append(row.id)
            if row.is_waiting:
                waiting_ids[row.project_id].append(row.id)
            if row.is_young:
                young_ids[row.project_id].append(row.id)
        conversations = await self._fetch(CONVERSATIONS, questions, ("conversations",))
        counts = {each.project_id: each.count for each in conversations}
        usages = []
        for project, limits in questions:
            tokens, are_new = await self._read_budgets(project, limits)
            usages.append(
                Usage(
                    open_ids[project],
                    waiting_ids[project],
                    frozenset(young_ids[project]),
                    tokens=tokens,
                    are_tokens_new=are_new,
                    conversations=counts.get(project, 0),
                )
            )
        return usages

    async def _read_budgets(self, project: UUID, limits: Limits) -> tuple[tuple[int, int], bool]:
        """The tokens of this day and month, and whether they were read now: once a minute."""
        if not (limits.tokens_per_day or limits.tokens_per_month):
            return (0, 0), False
        now = time.monotonic()
        known = self._budgets.get(project)
        if known is not None and now - known[0] < _BUDGET_TIME:
            return known[1], False
        today = datetime.fromtimestamp(self.now, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        day, month = [
            (await fetch_idempotent(self._pool, USED_TOKENS, {"project": project, "since": since}))[
                0
            ]
            for since in (today, today.replace(day=1))
        ]
        if len(self._budgets) >= _MAX_PROJECTS:
            self._budgets.clear()
        self._budgets[project] = now, (day, month)
        return (day, month), True

    async def _fetch(
        self, query: Query[RowT], questions: list[_Question], quotas: tuple[str, ...]
    ) -> list[RowT]:
        """The rows of the projects that have one of these quotas."""
        projects = [
            project
            for project, limits in questions
            if any(getattr(limits, quota) for quota in quotas)
        ]
        if not projects:
            return []
        return await fetch_idempotent(self._pool, query, {"projects": Uuids(projects)})


class ProjectStorage:
    """Measures one project after another, in small steps."""

    def __init__(self, pool: Pool, counters: QuotaCounters) -> None:
        self._pool = pool
        self._counters = counters
        self._one_at_a_time = asyncio.Lock()

    async def measure(self, project: UUID) -> None:
        """Measures the project and reports the sum. If Postgres or Redis is away, it is measured
        some minutes later."""
        stored = await self.measured(project)
        if stored is not None:
            try:
                await self._counters.set_stored(project, stored)
            except CountersUnavailable as error:
                self._log_unmeasured(project, error)

    async def measured(self, project: UUID) -> int | None:
        """How many bytes the project stores. None if Postgres is away."""
        try:
            async with self._one_at_a_time:
                return await self._stored_bytes(project)
        except DATABASE_UNAVAILABLE as error:
            self._log_unmeasured(project, error)
            return None

    @staticmethod
    def _log_unmeasured(project: UUID, error: Exception) -> None:
        logger.info("storage_not_measured", project=str(project), error=str(error).strip())

    async def _stored_bytes(self, project: UUID) -> int:
        values = {"project": project, "after": UUID(int=0)}
        [stored] = await fetch_idempotent(self._pool, STORED_IN_CONVERSATIONS, values)
        while True:
            started_at = time.monotonic()
            [part] = await fetch_idempotent(self._pool, STORED_WITH_RESPONSES, values)
            if part.last is None:
                return stored
            stored += part.stored_bytes
            values["after"] = part.last
            await asyncio.sleep(_PAUSE_FACTOR * (time.monotonic() - started_at))
