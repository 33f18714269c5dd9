"""What all runs of a process share: settings, connections and writers; and what features add to a
worker (models/features.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID

from redis.asyncio import Redis

from models.celery.queue import JobQueue
from models.config.groups import QuotaSettings
from models.config.routes import passthrough_of
from models.config.settings import Settings
from models.db.database import Pool
from models.due_work import DuePoll
from models.egress import EgressPolicy
from models.ended_line import EndedLine
from models.files.response_images import ResponseImages
from models.files.storage import FileStorage
from models.ids import new_item_id
from models.load.pacing import Pacer
from models.ownership.claims import Ownership
from models.ownership.lease import DatabaseClock
from models.ownership.takeover import Claim
from models.prices import PriceList
from models.project_policies import ProjectPolicies
from models.projects.quotas import Limits, ProjectQuotaCache
from models.redis.answer_cache import AnswerCache
from models.redis.quota_counters import Period, claimed_command, settle_command
from models.secrets import Sealer
from models.tasks import SideTasks
from models.tracing.spans import Tracer
from worker.log.journal import Journal
from worker.log.publisher import EventPublisher
from worker.outbound.download import FileMemory
from worker.process.limits import MemoryBudget
from worker.run.moderation import OpenModeration
from worker.tools.provider import ToolProviderFactory
from worker.upstream.upstreams import RequestTokenCounter, Upstreams


class QuotaNotices:
    """Notices to the counters in Redis. They are sent with the frames that are published, so a
    client that has seen the end of a response finds it counted. What is lost is corrected by the
    next requests of the project."""

    def __init__(
        self,
        defaults: QuotaSettings,
        policies: ProjectPolicies,
        publisher: EventPublisher,
        clock: DatabaseClock,
    ) -> None:
        self._limits = ProjectQuotaCache(defaults)
        self._policies = policies
        self._publisher = publisher
        self._clock = clock

    async def limits_of(self, claim: Claim) -> Limits | None:
        """The quotas of the response's project. None: it has none that a run matters for."""
        project = claim.row.project_id
        limits = self._limits.of(project, (await self._policies.policy(project)).quotas)
        return limits if limits is not None and limits.follow_responses else None

    async def on_claimed(self, claim: Claim) -> None:
        """The response does not wait any more."""
        limits = await self.limits_of(claim)
        if limits is not None and limits.queued:
            self._publisher.send(claimed_command(claim.row.project_id, claim.id))

    def on_ended(self, claim: Claim, limits: Limits, tokens: int | None) -> None:
        """The response has ended. `tokens`: None if the upstream did not report them."""
        period = Period.at(self._clock.now())
        project = claim.row.project_id
        self._publisher.send(settle_command(project, limits, claim.id, tokens, period))


_FAST_READS = 1
"""In a turn of the event loop. A read of 64 KiB takes two or three milliseconds."""


@dataclass(frozen=True, slots=True)
class Resources:
    """One object for the whole worker process."""

    settings: Settings
    ownership: Ownership
    journal: Journal
    pool: Pool
    upstreams: Upstreams
    job_queue: JobQueue
    egress: EgressPolicy
    prices: PriceList
    sealer: Sealer
    token_counter: RequestTokenCounter
    cache: AnswerCache
    policies: ProjectPolicies
    """Of the projects whose responses run here."""
    memory: MemoryBudget
    quotas: QuotaNotices
    file_memory: FileMemory
    """Of the files that all runs have fetched or read."""
    storage: FileStorage | None
    """Of files that clients have stored; None: this server stores none."""
    redis: Redis
    side_tasks: SideTasks
    tools: dict[str, ToolProviderFactory]
    """Type of a tool -> what makes its provider. MCP is not in it (worker/tools/toolbox.py)."""
    tracer: Tracer | None
    """None if traces are off."""
    exit_process: Callable[[], NoReturn]
    """Ends the process now. Its journal is recovered by the next owners of its responses."""
    due_poll: DuePoll
    """Finds what features have to do at a time."""
    fast_reads: Pacer = field(default_factory=lambda: Pacer(_FAST_READS))
    """For streams whose upstream sends faster than a model writes: their work would fill the event
    loop, and everybody else's would wait."""
    moderations: list[OpenModeration] = field(default_factory=list)
    """What features judge the runs with."""
    on_ended: list[Callable[[EndedLine], None]] = field(default_factory=list)
    """What features do with each response that has ended here."""
    new_id: Callable[[str], str] = new_item_id
    """Makes an item id with this prefix."""

    @property
    def all_passthrough(self) -> list[str]:
        """The parameters outside the Responses API that any upstream accepts."""
        return passthrough_of([self.settings.upstream, *self.settings.upstreams.values()])

    @property
    def images(self) -> ResponseImages:
        """The stored images of items."""
        return ResponseImages(self.pool, self.storage)

    async def egress_of(self, project: UUID) -> EgressPolicy:
        """The egress rules of this project, as they are now."""
        policy = await self.policies.policy(project)
        return self.egress.of_project(policy.egress)


class WorkerFeature:
    """What a feature has open in a worker process: the `FEATURE` of its `worker.py`."""

    def __init__(self, resources: Resources) -> None:
        """May add tools to those of the process."""
        self.resources = resources

    def start(self) -> None:
        """Starts its tasks, but not in a quarantine worker, which may crash at any time."""

    async def close(self) -> None:
        """Closes its connections. Its tasks have ended before."""
