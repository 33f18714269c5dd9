"""What projects use, read from the database, and the correction of the counters in Redis."""

from collections import defaultdict
from uuid import UUID

import structlog

from models.db.arrays import Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.quotas import CONVERSATIONS, OPEN_RESPONSES
from models.db.statement import Query, RowT
from models.ownership.clock import DatabaseClock
from models.ownership.grouping import GroupedRequests
from models.projects.quotas import Limits
from models.projects.usage import Usage
from models.redis.quota_counters import CountersUnavailable, Period, QuotaCounters

logger = structlog.get_logger()

_BUDGETS = ("tokens_per_day", "tokens_per_month")
_Question = tuple[UUID, Limits]
"""A project, and what is limited."""


class ProjectUsage:
    """Reads the usage of projects. Those that are asked for together share statements."""

    def __init__(self, pool: Pool, counters: QuotaCounters, clock: DatabaseClock) -> None:
        self._pool = pool
        self._counters = counters
        self._clock = clock
        self._reads: GroupedRequests[_Question, Usage] = GroupedRequests(self._read_group, gap=0)
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
        return [
            Usage(
                open_ids[project],
                waiting_ids[project],
                frozenset(young_ids[project]),
                conversations=counts.get(project, 0),
            )
            for project, _ in questions
        ]

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
