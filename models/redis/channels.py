"""Names that web and workers share: of the Celery task and its queues, Redis channels and keys."""

from uuid import UUID

from models.lifecycle import QUARANTINE_THRESHOLD

RUN_RESPONSE = "worker.run_response"
"""The only Celery task. Its argument is the response's UUID as 32 hex digits: the message wakes a
worker up, the row in the database is the job."""

INTERACTIVE = "interactive"
BACKGROUND = "background"
QUARANTINE = "quarantine"


def events(response_id: UUID) -> str:
    """The Redis channel to which a response's frames are published while it runs."""
    return f"events:{response_id.hex}"


def event_server(channel: str, servers: int) -> int:
    """Which of so many Redis servers has this channel of events."""
    return 0 if servers == 1 else int(channel[-8:], 16) % servers


def control(worker_id: UUID) -> str:
    """The Redis channel of a worker's cancels: UUIDs of responses as 32 hex digits."""
    return f"control:{worker_id.hex}"


def web_process(process_id: UUID) -> str:
    """The Redis channel that a web process is subscribed to while it runs; it carries nothing."""
    return f"web:{process_id.hex}"


def subscription_of(kind: str, process_id: UUID) -> str:
    """The Redis channel that a process of this kind is subscribed to while it runs."""
    return web_process(process_id) if kind == "web" else control(process_id)


def cache_redis_key(key: bytes) -> str:
    """The Redis key of a cached answer (models/redis/answer_cache.py)."""
    return f"cache:{key.hex()}"


def cache_share_keys(project: UUID) -> tuple[str, str]:
    """The Redis keys with the list of a project's cached answers, and their sizes."""
    return f"cache-answers:{project.hex}", f"cache-sizes:{project.hex}"


def upstream_states_key(worker_id: UUID) -> str:
    """The Redis key of what a worker knows of its upstreams (models/redis/upstream_states.py)."""
    return f"upstream-states:{worker_id.hex}"


def queue_for(*, background: bool, crashes: int) -> str:
    """The Celery queue of a response.

    `crashes`: its owners that crashed since its last checkpoint, a dead present owner included.
    """
    if crashes >= QUARANTINE_THRESHOLD:
        return QUARANTINE
    return BACKGROUND if background else INTERACTIVE
