"""Webhooks in a worker: a task delivers events to their endpoints.

A delivery is a row, made by the statement that ended the response. A worker takes due ones for a
short lease and stores what came of each try. A worker that dies in between leaves a row that is due
again when the lease has ended: so an endpoint may get an event twice, always with the same id, and
never not at all.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import structlog

from features.webhooks import queries, sender
from features.webhooks.events import event_id
from models.config.feature_groups import WebhookSettings
from models.db.arrays import Ints, Uuids
from models.db.database import Pool, execute, fetch, retry_while_unavailable
from models.due_work import DuePoll, DueWork, KindOfWork
from models.egress import EgressPolicy
from models.fence import FENCE, RowLease
from models.ids import WEBHOOK_ENDPOINT, admin_id
from models.project_policies import ProjectPolicies
from models.secrets import Sealer
from worker import metrics
from worker.run.resources import WorkerFeature

logger = structlog.get_logger()

_POLL = 1.0
"""Seconds between two looks for due deliveries."""
_AT_ONCE = 128
"""Tries that run at a time in this process."""
_AT_ONCE_OF_ENDPOINT = 8
"""Of them for one endpoint."""
_STORING = timedelta(seconds=15)
"""Longer than the time limit of a try by this, a delivery is leased: time to store the result."""


class Deliverer:
    """The deliveries of one process."""

    def __init__(
        self,
        settings: WebhookSettings,
        pool: Pool,
        sealer: Sealer,
        egress: EgressPolicy,
        policies: ProjectPolicies,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._sealer = sealer
        self._egress = egress
        self._policies = policies

    async def run(self, poll: DuePoll) -> None:
        """Delivers until it is cancelled; then tries that run are cancelled too, and another worker
        makes them again. `poll`: finds due deliveries."""
        lease = self._settings.timeout + _STORING
        kind = KindOfWork(
            "webhooks", queries.TAKE_DELIVERIES, lease, _POLL, _room, self._deliver, _facts
        )
        work = DueWork(self._pool, kind)
        work.find_by(poll, queries.IS_DUE)
        await work.run()

    async def _deliver(self, delivery: queries.Delivery, lease: RowLease) -> None:
        """Tries a delivery and stores what came of it."""
        FENCE.set(lease.require)
        time_limit = self._settings.timeout.total_seconds()
        policy = await self._policies.policy(delivery.project_id)
        egress = self._egress.of_project(policy.egress)
        outcome = await sender.send(delivery, self._sealer, egress, time_limit)
        await retry_while_unavailable(
            lambda: self._store(delivery, outcome), "webhooks_database_unavailable"
        )

    async def _store(self, delivery: queries.Delivery, outcome: sender.DeliveryOutcome) -> None:
        values: dict[str, object] = {
            "id": delivery.id,
            "attempts": delivery.attempts,
            "endpoint": delivery.endpoint_id,
            "status": outcome.status,
        }
        if outcome.is_delivered:
            await execute(self._pool, queries.DELIVERED, values)
            metrics.WEBHOOKS.labels("delivered").inc()
            return
        metrics.WEBHOOKS.labels("failed").inc()
        values |= {
            "error": outcome.error,
            "pause": sender.pause_after(delivery.attempts, outcome.retry_after),
            "expiry": sender.EXPIRY,
            "is_gone": outcome.is_gone,
            "disable_after": sender.DISABLE_AFTER,
            "longest_pause": sender.LONGEST_ENDPOINT_PAUSE,
        }
        [failure] = await fetch(self._pool, queries.NOT_DELIVERED, values)
        _log(delivery, outcome, failure)


def _room(running: Sequence[queries.Delivery]) -> dict[str, object] | None:
    """The values of TAKE_DELIVERIES beside the lease."""
    free = _AT_ONCE - len(running)
    if free <= 0:
        return None
    tries = Counter(delivery.endpoint_id for delivery in running)
    return {
        "at_once": _AT_ONCE_OF_ENDPOINT,
        "busy": Uuids(list(tries)),
        "tries": Ints(list(tries.values())),
        "free": free,
    }


def _facts(delivery: queries.Delivery) -> dict[str, object]:
    return {
        "endpoint": admin_id(WEBHOOK_ENDPOINT, delivery.endpoint_id),
        "webhook_id": event_id(delivery.event_id),
    }


def _log(
    delivery: queries.Delivery, outcome: sender.DeliveryOutcome, failure: queries.Failure
) -> None:
    """Logs and counts a try that has failed."""
    facts = _facts(delivery) | {
        "attempt": delivery.attempts,
        "status": outcome.status,
        "error": outcome.error,
    }
    if failure.is_disabled:
        metrics.WEBHOOKS_DISABLED.inc()
        logger.error("webhook_endpoint_disabled", **facts)
    if failure.is_given_up:
        metrics.WEBHOOKS_GIVEN_UP.inc()
        logger.error("webhook_given_up", **facts)
    if not (failure.is_disabled or failure.is_given_up):
        logger.warning("webhook_failed", **facts)


class WebhookTasks(WorkerFeature):
    """The deliveries."""

    def start(self) -> None:
        """Begins to deliver."""
        resources = self.resources
        deliverer = Deliverer(
            resources.settings.webhooks,
            resources.pool,
            resources.sealer,
            resources.egress,
            resources.policies,
        )
        resources.side_tasks.start(deliverer.run(resources.due_poll), "webhooks")


FEATURE = WebhookTasks
