"""Sends the Celery messages that wake workers: one for each response to run, from a thread.

A command to Redis blocks for its timeout if Redis hangs, which must not happen in an event loop. A
lost message does no harm: the row is the job, and a sweep finds it.

A message is Celery's protocol 2 as kombu stores it in Redis, with only the fields that a worker
reads: 0.3 KB instead of 1 KB. Celery itself cannot send many messages with one command. The
messages that wait are sent as one `LPUSH` a queue.
"""

import queue
import threading
from base64 import b64encode
from collections import defaultdict
from uuid import UUID, uuid4

import orjson
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from models.config.settings import Settings
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, RUN_RESPONSE
from models.redis.client import REDIS_ERRORS, connect_redis_sync

logger = structlog.get_logger()

MAX_REFILLED = 200
"""Messages. Waiting responses are enqueued again only while their queue has fewer: in a longer one
their messages still wait too, or the workers have enough others."""
_BACKLOG = 10_000
"""Messages that wait for a slow Redis. Further ones are dropped; a sweep finds their rows."""
_MAX_BATCH = 1_000
"""Messages in one command."""

Waiting = tuple[UUID, str]
"""A response and its queue."""


class JobQueue:
    """Enqueues responses without blocking the caller."""

    def __init__(self, settings: Settings) -> None:
        # Sent once more after a lost connection: after a restart of Redis the first message would
        # else be lost. One that comes twice does no harm.
        self._redis = connect_redis_sync(
            settings,
            "job-queue",
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )
        self._waiting: queue.Queue[Waiting | None] = queue.Queue(_BACKLOG)
        self._thread = threading.Thread(target=self._run, name="job-queue", daemon=True)
        self._thread.start()

    def enqueue(self, response_id: UUID, queue_name: str) -> None:
        """Wakes a worker of that queue for the response. Returns at once; never fails."""
        try:
            self._waiting.put_nowait((response_id, queue_name))
        except queue.Full:
            logger.warning("enqueue_dropped", response=str(response_id))

    def short_queues(self) -> frozenset[str]:
        """The queues with fewer than MAX_REFILLED messages; none while Redis is unavailable. Blocks
        for at most a few seconds."""
        names = (INTERACTIVE, BACKGROUND, QUARANTINE)
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.llen(name)
        try:
            lengths = pipeline.execute()
        except REDIS_ERRORS as error:
            logger.warning("queue_lengths_unavailable", error=str(error))
            return frozenset()
        return frozenset(
            name for name, length in zip(names, lengths, strict=True) if length < MAX_REFILLED
        )

    def close(self) -> None:
        """Sends the waiting messages, for at most two seconds. Blocks."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            logger.warning("enqueue_backlog_lost")
        self._thread.join(timeout=2)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = self._next_batch()
            is_open = None not in batch
            self._send([waiting for waiting in batch if waiting is not None])
        self._redis.close()

    def _next_batch(self) -> list[Waiting | None]:
        """Waits for a message; returns it and those that wait behind it."""
        batch = [self._waiting.get()]
        while len(batch) < _MAX_BATCH and not self._waiting.empty():
            batch.append(self._waiting.get())
        return batch

    def _send(self, batch: list[Waiting]) -> None:
        messages = defaultdict[str, list[bytes]](list)
        for response_id, queue_name in batch:
            messages[queue_name].append(_message(response_id, queue_name))
        pipeline = self._redis.pipeline(transaction=False)
        for queue_name, of_queue in messages.items():
            pipeline.lpush(queue_name, *of_queue)
        try:
            pipeline.execute()
        except REDIS_ERRORS as error:
            logger.warning("enqueue_failed", messages=len(batch), error=str(error))


def _message(response_id: UUID, queue_name: str) -> bytes:
    """A Celery message of the task RUN_RESPONSE, as kombu reads it from the list `queue_name`.

    The ids in it are of the message, not of the response: a worker can have two messages of one
    response.
    """
    message_id = uuid4().hex
    body = orjson.dumps(([response_id.hex], {}, {}))
    return orjson.dumps(
        {
            "headers": {"task": RUN_RESPONSE, "id": message_id},
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "body": b64encode(body).decode(),
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": message_id,
                "delivery_info": {"exchange": "", "routing_key": queue_name},
            },
        }
    )
