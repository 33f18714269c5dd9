"""The settings, connections and writers that all runs of a process share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID

from redis.asyncio import Redis

from models.celery.queue import JobQueue
from models.config.routes import passthrough_of
from models.config.settings import Settings
from models.db.database import Pool
from models.egress import EgressPolicy
from models.files.storage import FileStorage
from models.ids import new_item_id
from models.load.pacing import Pacer
from models.ownership.claims import Ownership
from models.project_policies import ProjectPolicies
from models.redis.answer_cache import AnswerCache
from models.secrets import Sealer
from models.side_tasks import SideTasks
from models.tracing.spans import Tracer
from worker.log.journal import Journal
from worker.memory_budget import MemoryBudget
from worker.outbound.file_memory import FileMemory
from worker.run.counting import RequestTokenCounter
from worker.run.quota_notices import QuotaNotices
from worker.tools.provider import ToolProviderFactory
from worker.upstream.upstreams import Upstreams

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
    fast_reads: Pacer = field(default_factory=lambda: Pacer(_FAST_READS))
    """For streams whose upstream sends faster than a model writes: their work would fill the event
    loop, and everybody else's would wait."""
    new_id: Callable[[str], str] = new_item_id
    """Makes an item id with this prefix."""

    @property
    def all_passthrough(self) -> list[str]:
        """The parameters outside the Responses API that any upstream accepts."""
        return passthrough_of([self.settings.upstream, *self.settings.upstreams.values()])

    async def egress_of(self, project: UUID) -> EgressPolicy:
        """The egress rules of this project, as they are now."""
        policy = await self.policies.policy(project)
        return self.egress.of_project(policy.egress)
