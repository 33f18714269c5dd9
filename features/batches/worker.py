"""Batches in a worker."""

from features.batches.progress import BatchProgress
from worker.run.resources import WorkerFeature


class Batches(WorkerFeature):
    """Their validation, and the collection of their results."""

    def start(self) -> None:
        """Begins, if this server stores files."""
        resources = self.resources
        if resources.storage is not None:
            progress = BatchProgress(
                resources.settings, resources.pool, resources.redis, resources.storage
            )
            resources.side_tasks.start(progress.run(), "batches")


FEATURE = Batches
