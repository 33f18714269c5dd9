"""Enqueues responses that wait without an owner: their Celery messages may have been lost."""

import structlog

from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.db.database import Pool, fetch
from models.db.queries.sweep import REENQUEUE
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, queue_for

logger = structlog.get_logger()


async def enqueue_waiting(pool: Pool, job_queue: JobQueue, settings: Settings) -> None:
    """Enqueues again up to 200 open responses that have waited for too long without an owner.

    Only into short queues: else each sweep would add a message for each waiting response, and fill
    Redis. Raises what DATABASE_UNAVAILABLE names.
    """
    short = await job_queue.short_queues()
    values = {
        "interval": settings.lease.enqueue_interval,
        **{name: name in short for name in (INTERACTIVE, BACKGROUND, QUARANTINE)},
    }
    responses = await fetch(pool, REENQUEUE, values)
    for response in responses:
        queue = queue_for(background=response.background, crashes=response.crashes)
        job_queue.enqueue(response.id, queue)
    if responses:
        logger.info("responses_requeued", responses=len(responses))
