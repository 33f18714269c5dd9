"""The work of a process beside its responses: old rows are deleted, webhooks delivered, archived
projects cancelled, batches and files of vector stores brought on."""

from uuid import UUID

from redis.asyncio import Redis

from models.retrieval.embedder import Embedder
from models.side_tasks import SideTasks
from worker.archived_projects import cancel_archived
from worker.batches.progress import BatchProgress
from worker.purge import Purger
from worker.retrieval.ingest import Ingest
from worker.run.resources import Resources
from worker.webhooks.deliverer import Deliverer


def start_upkeep(
    side_tasks: SideTasks, resources: Resources, redis: Redis, embedder: Embedder, process: UUID
) -> None:
    """Starts all of it. A quarantine worker only deletes: its process may crash at any time."""
    settings, pool, storage = resources.settings, resources.pool, resources.storage
    side_tasks.start(Purger(settings, str(process), storage).run(), "purge")
    if settings.quarantine:
        return
    deliverer = Deliverer(
        settings.webhooks, pool, resources.sealer, resources.egress, resources.policies
    )
    side_tasks.start(deliverer.run(), "webhooks")
    side_tasks.start(cancel_archived(pool), "archived-projects")
    if storage is None:
        return
    side_tasks.start(BatchProgress(settings, pool, redis, storage).run(), "batches")
    ingest = Ingest(settings, pool, storage, embedder, resources.policies)
    side_tasks.start(ingest.run(), "ingest")
