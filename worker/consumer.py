"""Celery's consumer, whose messages are read in the pool's event loop (ADR 0030).

Celery connects to the broker, declares the queues, decodes each message and stops consuming. Only
the loop that waits for messages is replaced. Celery's own loop reads in its thread, which gets
Python's lock from a busy event loop only every 5 ms, several times a message; and it keeps a record
of each task until its end, although the row in Postgres is that record.
"""

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
        task_consumer.on_message = self.on_message
        task_consumer.consume()
        self._channel = task_consumer.channel
        self._transport = connection.transport
        self.pool.start_reading([queue.name for queue in task_consumer.queues], self.deliver)
        self.on_ready()
        while blueprint.state == bootsteps.RUN:  # type: ignore[attr-defined]
            state.maybe_shutdown()
            time.sleep(_SHUTDOWN_CHECK)

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
        if message.headers["task"] != RUN_RESPONSE:
            raise ValueError(message.headers["task"])
        arguments, _, _ = message.payload
        queue = message.delivery_info["routing_key"]
        self.pool.run([UUID(hex=response_id) for response_id in arguments], queue)
