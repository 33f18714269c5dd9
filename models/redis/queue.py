"""The bell: one Celery message per response, sent from a thread of its own (design §4.1).

`send_task` blocks for half a millisecond, and with a hung Redis for as long as its timeouts; neither may happen in an event loop. A
bell that is not heard fails nothing: the row is the queue entry, and sweepers ring again.
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
"""For sending. Measured: with the defaults a Redis that accepts and never answers blocks a sender for more than 25 s."""
_BACKLOG = 10_000
"""Bells waiting for a slow Redis; more are dropped, the sweep finds their rows."""


class JobQueue:
    """Rings without blocking the caller."""

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
        self._thread = threading.Thread(target=self._run, name="bell", daemon=True)
        self._thread.start()

    def enqueue(self, response_id: UUID, queue_name: str) -> None:
        """Asks a worker of that queue to look at the response. Returns at once; never fails."""
        try:
            self._waiting.put_nowait((response_id, queue_name))
        except queue.Full:
            logger.warning("bell_dropped", response=str(response_id))

    def close(self) -> None:
        """Rings what is waiting, for at most two seconds, and ends. Blocks."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            logger.warning("bell_closed_full")
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
                logger.warning("bell_unheard", response=str(response_id), error=str(error))
        self._celery.close()
