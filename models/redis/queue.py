"""Sends one Celery message for each response to run, from a thread.

`send_task` blocks for half a millisecond, and for its timeouts if Redis hangs, which must not
happen in an event loop. A lost message does no harm: the row is the job, and a sweep enqueues it
again.
"""

import queue
import threading
from uuid import UUID

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from models.config.settings import Settings
from models.redis.channels import RUN_RESPONSE

logger = structlog.get_logger()

BROKER_OPTIONS = {
    "socket_timeout": 1.0,
    "socket_connect_timeout": 1.0,
    "socket_keepalive": True,
    "retry_on_timeout": False,
    "max_retries": 0,
}
"""For sending. With the defaults, a Redis that accepts connections and never replies blocks a
sender for more than 25 s (measured)."""
_BACKLOG = 10_000
"""Messages that wait for a slow Redis. Further ones are dropped; a sweep enqueues their rows."""


class JobQueue:
    """Enqueues responses without blocking the caller."""

    def __init__(self, settings: Settings) -> None:
        self._celery = Celery(broker=settings.redis_url.get_secret_value(), set_as_current=False)
        self._celery.conf.update(
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            broker_transport_options=BROKER_OPTIONS,
            broker_pool_limit=1,
        )
        self._waiting: queue.Queue[tuple[UUID, str] | None] = queue.Queue(_BACKLOG)
        self._thread = threading.Thread(target=self._run, name="job-queue", daemon=True)
        self._thread.start()

    def enqueue(self, response_id: UUID, queue_name: str) -> None:
        """Wakes a worker of that queue for the response. Returns at once; never fails."""
        try:
            self._waiting.put_nowait((response_id, queue_name))
        except queue.Full:
            logger.warning("enqueue_dropped", response=str(response_id))

    def close(self) -> None:
        """Sends the waiting messages, for at most two seconds. Blocks."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            logger.warning("enqueue_backlog_lost")
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            response_id, queue_name = waiting
            try:
                self._celery.send_task(
                    RUN_RESPONSE,
                    args=[response_id.hex],
                    queue=queue_name,
                    retry=False,
                    ignore_result=True,
                )
            except (OperationalError, RedisError, OSError) as error:
                logger.warning("enqueue_failed", response=str(response_id), error=str(error))
        self._celery.close()
