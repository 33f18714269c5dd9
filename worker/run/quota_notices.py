"""What the quotas of projects must know of runs (ADR 0040)."""

from models.config.groups import QuotaSettings
from models.ownership.clock import DatabaseClock
from models.ownership.takeover import Claim
from models.project_policies import ProjectPolicies
from models.projects.quotas import Limits, ProjectQuotaCache
from models.redis.quota_counters import Period, claimed_command, settle_command
from worker.log.publisher import Publisher


class QuotaNotices:
    """Notices to the counters in Redis. They are sent with the frames that are published, so a
    client that has seen the end of a response finds it counted. What is lost is corrected by the
    next requests of the project."""

    def __init__(
        self,
        defaults: QuotaSettings,
        policies: ProjectPolicies,
        publisher: Publisher,
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
