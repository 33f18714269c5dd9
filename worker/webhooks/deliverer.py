"""Delivers events to the endpoints of webhooks: a task of every worker.

A delivery is a row, made by the statement that ended the response. A worker takes due ones for a
short lease and stores what came of each try. A worker that dies in between leaves a row that is due
again when the lease has ended: so an endpoint may get an event twice, always with the same id, and
never not at all.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from uuid import UUID

import structlog

from models.config.groups import WebhookSettings
from models.db.arrays import Uuids
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Pool,
    execute,
    fetch,
    retry_while_unavailable,
)
from models.db.queries.webhooks import (
    DELIVERED,
    NOT_DELIVERED,
    TAKE_DELIVERIES,
    Delivery,
)
from models.egress import EgressPolicy
from models.project_policies import ProjectPolicies
from models.secrets import Sealer
from models.webhooks.schedule import (
    DISABLE_AFTER,
    EXPIRY,
    LONGEST_ENDPOINT_PAUSE,
    pause_after,
)
from worker import metrics
from worker.webhooks.sender import Outcome, send

logger = structlog.get_logger()

_POLL = 1.0
"""Seconds between two looks for due deliveries."""
_AT_ONCE = 64
"""Tries that run at a time in this process."""
_AT_ONCE_OF_ENDPOINT = 4
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Counter[UUID] = Counter()
        """Tries that run now, by endpoint."""

    async def run(self) -> None:
        """Delivers until it is cancelled; then tries that run are cancelled too, and another worker
        makes them again."""
        try:
            while True:
                try:
                    await self._start_due()
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("webhooks_interrupted", error=str(error).strip())
                await asyncio.sleep(_POLL)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _start_due(self) -> None:
        """Starts tries while there are due deliveries and room."""
        while (free := _AT_ONCE - len(self._tasks)) > 0:
            taken = await fetch(
                self._pool,
                TAKE_DELIVERIES,
                {
                    "at_once": _AT_ONCE_OF_ENDPOINT,
                    "busy": Uuids(list(self._running)),
                    "free": free,
                    "lease": self._settings.timeout + _STORING,
                },
            )
            for delivery in taken:
                self._start(delivery)
            if not taken:
                return

    def _start(self, delivery: Delivery) -> None:
        self._running[delivery.endpoint_id] += 1
        task = asyncio.create_task(self._deliver(delivery), name="webhook")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            time_limit = self._settings.timeout.total_seconds()
            policy = await self._policies.policy(delivery.project_id)
            egress = self._egress.of_project(policy.egress)
            outcome = await send(delivery, self._sealer, egress, time_limit)
            await retry_while_unavailable(
                lambda: self._store(delivery, outcome), "webhooks_database_unavailable"
            )
        except Exception:
            # It is due again when its lease ends.
            logger.exception("webhook_not_tried", delivery=str(delivery.id))
        finally:
            self._running[delivery.endpoint_id] -= 1
            self._running += Counter()  # drops what is 0

    async def _store(self, delivery: Delivery, outcome: Outcome) -> None:
        values: dict[str, object] = {
            "id": delivery.id,
            "attempts": delivery.attempts,
            "endpoint": delivery.endpoint_id,
            "status": outcome.status,
        }
        if outcome.is_delivered:
            await execute(self._pool, DELIVERED, values)
            metrics.WEBHOOKS.labels("delivered").inc()
            return
        metrics.WEBHOOKS.labels("failed").inc()
        values |= {
            "error": outcome.error,
            "pause": pause_after(delivery.attempts, outcome.retry_after),
            "expiry": EXPIRY,
            "is_gone": outcome.is_gone,
            "disable_after": DISABLE_AFTER,
            "longest_pause": LONGEST_ENDPOINT_PAUSE,
        }
        states = await fetch(self._pool, NOT_DELIVERED, values)
        self._log(delivery, outcome, is_disabled=bool(states and states[0].is_disabled))

    def _log(self, delivery: Delivery, outcome: Outcome, *, is_disabled: bool) -> None:
        facts = {
            "endpoint": f"whe_{delivery.endpoint_id.hex}",
            "delivery": str(delivery.id),
            "attempt": delivery.attempts,
            "status": outcome.status,
            "error": outcome.error,
        }
        if is_disabled:
            logger.error("webhook_endpoint_disabled", **facts)
        else:
            logger.warning("webhook_failed", **facts)
