"""Webhooks in a worker."""

from features.webhooks.deliverer import Deliverer
from worker.run.resources import WorkerFeature


class Webhooks(WorkerFeature):
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
        resources.side_tasks.start(deliverer.run(), "webhooks")


FEATURE = Webhooks
