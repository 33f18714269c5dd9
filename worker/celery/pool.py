"""A Celery pool that runs a thousand responses in one asyncio event loop (ADR 0002), and the
consumer whose messages are read in that loop (docs/architecture.md).

Celery's thread starts and stops the process; a uvloop in a second thread reads the messages and
runs the responses. Nothing waits for the other thread between the start and the stop. The setting
`worker_pool` selects this pool, because Celery's option `-P` knows only its own pools.

Celery connects to the broker, declares the queues, decodes each message and stops consuming. Only
the loop that waits for messages is replaced. Celery's own loop reads in its thread, which gets
Python's lock from a busy event loop only every 5 ms, several times a message; and it keeps a record
of each task until its end, although the row in Postgres is that record. Only RabbitMQ is read in
Celery's thread (docs/scaling.md): its client blocks.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import orjson
import structlog
import uvloop
from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.worker import state
from celery.worker.consumer.consumer import Consumer

from models.redis.channels import RUN_RESPONSE
from worker.celery.wakeups import WakeUps
from worker.process.engine import Engine

logger = structlog.get_logger()

_SHUTDOWN_CHECK = 0.1
"""Seconds between two looks at whether a signal for Celery has arrived."""


class EventLoopConsumer(Consumer):
    """Gives the ids in each message to the pool. The setting `worker_consumer` selects it."""

    def loop(self, *loop_args: Any) -> None:
        """Has messages read until Celery stops; called with itself and Celery's connection, kombu
        consumer and blueprint.

        Raises Celery's WorkerShutdown or WorkerTerminate after a signal.
        """
        _, connection, task_consumer, blueprint, *_ = loop_args
        if self.pool.app.settings.broker_url is not None:
            self._consume(connection, task_consumer, blueprint)
            return
        task_consumer.on_message = self.on_message
        task_consumer.consume()
        self._channel = task_consumer.channel
        self._transport = connection.transport
        self.pool.start_reading([queue.name for queue in task_consumer.queues], self.deliver)
        self.on_ready()
        while blueprint.state == bootsteps.RUN:  # type: ignore[attr-defined]
            state.maybe_shutdown()
            time.sleep(_SHUTDOWN_CHECK)

    def _consume(self, connection: Any, task_consumer: Any, blueprint: Any) -> None:
        """Reads RabbitMQ on Celery's thread until Celery stops. A queue without a free slot is not
        consumed, so its messages wait for other workers.

        Of each queue one message at a time is here and not acknowledged: RabbitMQ would send all
        of them to a consumer without acknowledgements. Raises RabbitMQ's errors; Celery connects
        again.
        """
        task_consumer.channel.basic_qos(0, 1, False)
        task_consumer.on_message = self._on_delivery
        self._task_consumer = task_consumer
        queues = list(task_consumer.queues)
        self.on_ready()
        while blueprint.state == bootsteps.RUN:  # type: ignore[attr-defined]
            state.maybe_shutdown()
            for queue in queues:
                if not task_consumer.consuming_from(queue) and self.pool.has_slot(queue.name):
                    task_consumer.add_queue(queue)
                    task_consumer.consume()
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=_SHUTDOWN_CHECK)

    def _on_delivery(self, message: Any) -> None:
        queue = message.delivery_info["routing_key"]
        try:
            response_ids = _response_ids(message)
        except Exception:
            # Anything may be in a queue, and kombu lists no exceptions for it.
            logger.exception("message_unreadable", queue=queue)
        else:
            if not self.pool.start_blocking(response_ids, queue):
                self._task_consumer.cancel_by_queue(queue)
        message.ack()

    def stop(self) -> None:
        """Stops consuming. Celery calls it before it stops the pool."""
        self.pool.stop_reading()
        super().stop()

    def deliver(self, queue: str, message: bytes) -> None:
        """Has kombu decode a message, which calls `on_message`. Called in the event loop. A message
        that is none of ours is logged and dropped."""
        try:
            self._transport.on_message_ready(self._channel, orjson.loads(message), queue)
        except Exception:
            # Anything may be in a list of Redis, and kombu lists no exceptions for it.
            logger.exception("message_unreadable", queue=queue)

    def on_message(self, message: Any) -> None:
        """Starts the responses whose ids are the message's arguments."""
        self.pool.run(_response_ids(message), message.delivery_info["routing_key"])


def _response_ids(message: Any) -> list[UUID]:
    if message.headers["task"] != RUN_RESPONSE:
        raise ValueError(message.headers["task"])
    arguments, _, _ = message.payload
    return [UUID(hex=response_id) for response_id in arguments]


_STOP_SLACK = 10.0
"""Seconds after the grace period in which runs are handed over. Then the process exits anyway:
sweeps of other workers find the responses that it still owns."""
_READERS_END = 1.0
"""Seconds in which the readers of the queues end. Then their connections are closed, and a message
that one of them has just taken is lost."""


class AsyncioPool(BasePool):
    """Runs the task `worker.run_response` in an event loop."""

    signal_safe = False
    uses_semaphore = False
    task_join_will_block = False

    def on_start(self) -> None:
        """Starts the event loop and the engine; returns when the process can claim responses.

        Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable.
        """
        self._wake_ups: WakeUps | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()
        self.engine = Engine(self.app.settings, self.limit, self._on_capacity_changed)
        asyncio.run_coroutine_threadsafe(self.engine.start(), self.loop).result()

    def start_reading(self, queues: Sequence[str], deliver: Callable[[str, bytes], None]) -> None:
        """Reads these queues in the event loop, which calls `deliver` with a queue and a message.
        Called on Celery's thread, once."""
        asyncio.run_coroutine_threadsafe(self._start_reading(queues, deliver), self.loop).result()

    async def _start_reading(
        self, queues: Sequence[str], deliver: Callable[[str, bytes], None]
    ) -> None:
        self._wake_ups = WakeUps(
            self.app.settings, "worker-queues", queues, self.engine.intake, deliver
        )
        self._reading = self.engine.start_side_task(self._wake_ups.run(), "wake-ups")

    def run(self, response_ids: Sequence[UUID], queue: str) -> None:
        """Starts the responses of one message. Called in the event loop."""
        self.engine.intake.run_from_message(response_ids, queue)

    def start_blocking(self, response_ids: Sequence[UUID], queue: str) -> bool:
        """`run`, called on Celery's thread. Returns whether the queue has a free slot after it."""

        async def start() -> bool:
            self.run(response_ids, queue)
            return self.engine.intake.free_for(queue) > 0

        return asyncio.run_coroutine_threadsafe(start(), self.loop).result()

    def has_slot(self, queue: str) -> bool:
        """Whether a response of this queue can be started. For every thread."""
        return self.engine.intake.free_for(queue) > 0

    def _on_capacity_changed(self) -> None:
        if self._wake_ups is not None:
            self._wake_ups.on_capacity_changed()

    def stop_reading(self) -> None:
        """Takes no further message. Called on Celery's thread; returns within two seconds."""
        if self._is_stopped:
            return
        asyncio.run_coroutine_threadsafe(self._stop_reading(), self.loop).result()

    async def _stop_reading(self) -> None:
        if self._wake_ups is not None and self._reading is not None:
            await self._wake_ups.stop()
            await asyncio.wait([self._reading], timeout=_READERS_END)

    def on_stop(self) -> None:
        """Stops the engine. Celery calls this on its main thread; in a cold shutdown before the
        consumer has stopped, and a second time after that."""
        if self._is_stopped:
            return
        self.stop_reading()
        self._is_stopped = True
        grace = self.app.settings.worker.longest_grace.total_seconds()
        stopping = asyncio.run_coroutine_threadsafe(self.engine.stop(), self.loop)
        try:
            stopping.result(timeout=grace + _STOP_SLACK)
        except TimeoutError:
            logger.warning("stop_timeout", running=self.engine.running)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=2)

    def on_terminate(self) -> None:
        """Celery's cold shutdown: stops the engine in the same way."""
        self.on_stop()
