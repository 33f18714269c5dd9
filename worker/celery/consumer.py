"""Celery's consumer, whose messages are read in the pool's event loop (docs/architecture.md).

Celery connects to the broker, declares the queues, decodes each message and stops consuming. Only
the loop that waits for messages is replaced. Celery's own loop reads in its thread, which gets
Python's lock from a busy event loop only every 5 ms, several times a message; and it keeps a record
of each task until its end, although the row in Postgres is that record. Only RabbitMQ is read in
Celery's thread (docs/scaling.md): its client blocks.
"""

import contextlib
import time
from typing import Any
from uuid import UUID

import orjson
import structlog
from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.consumer import Consumer

from models.redis.channels import RUN_RESPONSE

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
