"""Starts responses of projects that have none here while others have all slots (ADR 0069).

A full worker reads no wake-ups: another one may have a slot. So this task looks at the newest ones
without taking them, and PostgreSQL chooses among all that wait.
"""

import asyncio

from models.celery.queue import JobQueue
from models.redis.channels import BACKGROUND, INTERACTIVE
from worker.capacity import Capacity
from worker.line import Line

_POLL = 0.5
"""Seconds between two looks of a full worker that find nobody."""
_NEXT = 0.05
"""Seconds from a look that has found somebody to the next one: short responses of a project follow
each other in its slot of the reserve."""


async def start_newcomers(capacity: Capacity, line: Line, job_queue: JobQueue) -> None:
    """Starts them. Never returns."""
    found = 0
    while True:
        await asyncio.sleep(_NEXT if found else _POLL)
        found = 0
        for queue in (INTERACTIVE, BACKGROUND):
            if capacity.free_for_newcomers(queue):
                found += await line.choose_newcomers(queue, await job_queue.newest(queue))
