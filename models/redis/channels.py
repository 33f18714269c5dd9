"""Names both sides must agree on: Celery queues and task, Redis channels."""

from uuid import UUID

RUN_RESPONSE = "worker.run_response"
"""The one Celery task. Its only argument is the response's UUID as 32 hex digits: a doorbell, not a job description."""

INTERACTIVE = "interactive"
BACKGROUND = "background"
QUARANTINE = "quarantine"


def events(response_id: UUID) -> str:
    """The Redis channel on which a response's frames are shown while it runs."""
    return f"events:{response_id.hex}"


def control(worker_id: UUID) -> str:
    """The Redis channel on which a worker hears cancels: the payload is a response's UUID as 32 hex digits."""
    return f"control:{worker_id.hex}"


def cache_redis_key(key: bytes) -> str:
    """Where in Redis the answer to this question is remembered (models/redis/answer_cache.py)."""
    return f"cache:{key.hex()}"


def queue_for(*, background: bool, deaths: int) -> str:
    """Which queue rings for a response (design §4.1, §4.6).

    `deaths` counts the worker processes that died holding it, the present dead owner included.
    """
    if deaths >= 2:
        return QUARANTINE
    return BACKGROUND if background else INTERACTIVE
