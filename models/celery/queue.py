"""Sends the Celery messages that wake workers, from the event loop of the process.

A message is only a wake-up: the row is the job, and a sweep finds a row whose message was lost. So
nothing waits for Redis here, and what a Redis that is away would let grow is dropped (I8, I12).

After each batch the next ids gather for a moment. Ids of one queue travel together in one message:
a process that sends one id now and then sends it at once, and a busy one sends fewer and larger
messages (docs/architecture.md). Where `broker_url` is set they are sent to RabbitMQ,
not to Redis (docs/scaling.md).

A message is Celery's protocol 2 as kombu stores it in Redis, with only the fields that a worker
reads: 0.3 KB and 45 bytes for each further id, instead of 1 KB each.
"""

import asyncio
import contextlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

import orjson
import structlog
from prometheus_client import Counter

from models.celery.rabbitmq import RABBITMQ_ERRORS, RabbitMqSender
from models.config.settings import Settings
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, RUN_RESPONSE
from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT, redis_client
from models.redis.raw_connection import RawConnection, pack

logger = structlog.get_logger()

MAX_REFILLED = 200
"""Messages. Waiting responses are enqueued again only while their queue has fewer: in a longer one
their messages still wait too, or the workers have enough others."""
MAX_IDS = 16
"""Ids in one message. A worker with fewer free slots gives the others back, so a larger message
would wander between workers that are nearly full."""
_NEWEST = 64
"""Messages that `newest` reads."""
_BACKLOG = 10_000
"""Ids that wait for a slow broker. Further ones are dropped; a sweep finds their rows."""
_GATHERING = 0.002
"""Seconds between two batches. An id that comes alone is sent at once, one that follows another
within this time waits for the rest of it: half the messages at 500 ids a second."""
_PAUSE = 0.5
"""Seconds without an attempt after the broker was unavailable."""
_CLOSE_TIMEOUT = 2.0
"""Seconds in which a process that ends sends what still waits."""
_QUEUES = (INTERACTIVE, BACKGROUND, QUARANTINE)
_BROKER_ERRORS: tuple[type[Exception], ...] = (*REDIS_ERRORS, *RABBITMQ_ERRORS)


class _End(NamedTuple):
    """One end of a queue."""

    queue: str
    command: bytes
    """LPUSH: behind all others, RPUSH: before them. Workers take from the right."""


_Batch = Mapping[_End, Sequence[Sequence[UUID]]]
"""The ids of each message, in order."""
_NOBODY: Sequence[UUID] = ()
"""The ids of a message that only says that responses wait in line."""


class JobQueue:
    """Enqueues responses without blocking the caller. `run` sends them, `close` what is left."""

    def __init__(self, settings: Settings, dropped: Counter) -> None:
        """`dropped` counts the ids that were not sent."""
        self._redis = redis_client(settings, "job-queue", timeout=None)
        self._dropped = dropped
        self._connection: RawConnection | None = None
        self._rabbitmq: RabbitMqSender | None = None
        if settings.broker_url is not None:
            url = settings.broker_url.get_secret_value()
            self._rabbitmq = RabbitMqSender(url, RUN_RESPONSE, _QUEUES)
        self._waiting: dict[_End, list[UUID]] = {}
        """In the order in which they are sent. An id stays here until Redis has confirmed it,
        or it was written to RabbitMQ."""
        self._announced: set[_End] = set()
        self._wake = asyncio.Event()

    def enqueue(self, response_id: UUID, queue: str) -> None:
        """Wakes a worker of that queue for the response. Returns at once; never fails."""
        self._add((response_id,), _End(queue, b"LPUSH"))

    def give_back(self, response_ids: Sequence[UUID], queue: str) -> None:
        """Puts ids that this worker took and cannot run before all others of their queue. Returns
        at once; never fails."""
        self._add(response_ids, _End(queue, b"RPUSH"))

    def announce(self, queue: str) -> None:
        """Wakes one worker of that queue, which looks what is next in line. Returns at once; never
        fails."""
        self._announced.add(_End(queue, b"RPUSH"))
        self._wake.set()

    def _add(self, response_ids: Sequence[UUID], end: _End) -> None:
        if sum(map(len, self._waiting.values())) >= _BACKLOG:
            self._dropped.inc(len(response_ids))
            return
        self._waiting.setdefault(end, []).extend(response_ids)
        self._wake.set()

    async def run(self) -> None:
        """Sends what waits. Never returns."""
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        try:
            while True:
                await self._wake.wait()
                if (pause := next_at - loop.time()) > 0:
                    await asyncio.sleep(pause)
                next_at = loop.time() + _GATHERING
                if not await self._send_waiting():
                    next_at += _PAUSE
        finally:
            await self._disconnect()

    async def close(self) -> None:
        """Sends what waits, for at most two seconds, and disconnects. `run` must have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                if any(self._waiting.values()) or self._announced:
                    await self._send_waiting()
        await self._disconnect()
        if self._rabbitmq is not None:
            self._rabbitmq.close()
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()

    async def short_queues(self) -> frozenset[str]:
        """The queues with fewer than MAX_REFILLED messages; none while the broker is unavailable.
        Takes at most a second."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                lengths = await self._lengths()
        except _BROKER_ERRORS as error:
            logger.warning("queue_lengths_unavailable", error=repr(error))
            return frozenset()
        return frozenset(name for name, length in lengths.items() if length < MAX_REFILLED)

    async def newest(self, queue: str) -> list[UUID]:
        """The ids in the newest messages of the queue, which stay there; none of RabbitMQ, or while
        Redis is unavailable. Takes at most a second."""
        if self._rabbitmq is not None:
            return []
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                messages = await self._redis.lrange(queue, 0, _NEWEST - 1)
        except REDIS_ERRORS as error:
            logger.warning("queue_unavailable", queue=queue, error=repr(error))
            return []
        return [response_id for message in messages for response_id in _ids_of(message)]

    async def _lengths(self) -> dict[str, int]:
        if self._rabbitmq is not None:
            return await self._rabbitmq.lengths()
        async with self._redis.pipeline(False) as pipeline:
            for name in _QUEUES:
                pipeline.llen(name)
            return dict(zip(_QUEUES, await pipeline.execute(), strict=True))

    async def _send_waiting(self) -> bool:
        """Sends what waits now, or drops it if the broker is unavailable. Returns whether it was
        sent.

        What a cancellation interrupts stays, and is sent again: a second message does no harm.
        """
        self._wake.clear()
        counts = {end: len(ids) for end, ids in self._waiting.items() if ids}
        announced = {end: [_NOBODY] for end in self._announced}
        batch = announced | {
            end: [*_messages(self._waiting[end]), *announced.get(end, ())] for end in counts
        }
        is_sent = await self._send_or_log(batch)
        self._announced -= announced.keys()
        for end, count in counts.items():
            del self._waiting[end][:count]
            if not is_sent:
                self._dropped.inc(count)
        return is_sent

    async def _send_or_log(self, batch: _Batch) -> bool:
        is_open = self._connection is not None
        if self._rabbitmq is not None:
            is_open = self._rabbitmq.is_connected
        try:
            try:
                await self._send(batch)
            except TimeoutError:
                raise
            except _BROKER_ERRORS:
                # The broker has ended the connection at some time since the last batch.
                if not is_open:
                    raise
                await self._disconnect()
                await self._send(batch)
        except _BROKER_ERRORS as error:
            logger.warning("enqueue_failed", error=repr(error))
            await self._disconnect()
            return False
        return True

    async def _send(self, batch: _Batch) -> None:
        """Raises what _BROKER_ERRORS names."""
        async with asyncio.timeout(REDIS_TIMEOUT):
            if self._rabbitmq is not None:
                for end, messages in batch.items():
                    is_first = end.command == b"RPUSH"
                    await self._rabbitmq.send(end.queue, messages, first=is_first)
                return
            if self._connection is None:
                self._connection = await RawConnection.open(self._redis)
            self._connection.write([_push(end, ids) for end, ids in batch.items()])
            missing = len(batch)
            while missing > 0:
                missing -= len(await self._connection.read())

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.abort()


def _push(end: _End, messages: Sequence[Sequence[UUID]]) -> bytes:
    """The command that stores the messages with these ids at this end of the queue."""
    packed = [wake_up(ids, end.queue) for ids in messages]
    if end.command == b"RPUSH":
        # The last one becomes the rightmost, which is taken first.
        packed.reverse()
    return pack(end.command, end.queue.encode(), *packed)


def _messages(response_ids: Sequence[UUID]) -> list[Sequence[UUID]]:
    """The ids of each message."""
    return [response_ids[first : first + MAX_IDS] for first in range(0, len(response_ids), MAX_IDS)]


def wake_up(response_ids: Sequence[UUID], queue: str) -> bytes:
    """A Celery message of the task RUN_RESPONSE, as kombu reads it from the list `queue`.

    Its arguments are the ids; none: responses wait in line. The ids of the
    message itself are its own, because a worker can have two messages of one response.
    """
    message_id = uuid4().hex
    body = orjson.dumps(([response_id.hex for response_id in response_ids], {}, {}))
    return orjson.dumps(
        {
            "headers": {"task": RUN_RESPONSE, "id": message_id},
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "body": b64encode(body).decode(),
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": message_id,
                "delivery_info": {"exchange": "", "routing_key": queue},
            },
        }
    )


def _ids_of(message: bytes | str) -> list[UUID]:
    """The ids in a message. Anything may be in a list of Redis: a message that is none of ours has
    none."""
    try:
        arguments, _, _ = orjson.loads(b64decode(orjson.loads(message)["body"]))
        return [UUID(hex=response_id) for response_id in arguments]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
