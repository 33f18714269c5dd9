"""RabbitMQ as the broker of the wake-ups, where `broker_url` is set (docs/scaling.md).

Its clients block, so the wake-ups are sent in a thread. Messages are neither durable nor confirmed:
the row is the job, and a sweep finds a row whose message was lost (I8).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from kombu import Connection, Producer, Queue
from kombu.transport.pyamqp import Transport

RABBITMQ_ERRORS: Final[tuple[type[Exception], ...]] = (
    *Transport.connection_errors,
    *Transport.channel_errors,
)
"""What a call raises if RabbitMQ is unavailable or refuses it."""
TRANSPORT_OPTIONS: Final = {"connect_timeout": 1, "read_timeout": 2, "write_timeout": 2}
"""Seconds."""
_TRANSIENT: Final = 1
"""The delivery mode of a message that is not written to the disk."""

ResultT = TypeVar("ResultT")


def task_queue(name: str) -> Queue:
    """The declaration of a queue. Every process makes it: the first one creates the queue. Messages
    of priority 1 are delivered before the others."""
    return Queue(
        name,
        routing_key=name,
        no_ack=False,
        max_priority=1,
        queue_arguments={"x-queue-type": "classic"},
    )


class RabbitMqSender:
    """Sends wake-ups, and reads the lengths of the queues. One call runs at a time. Each raises one
    of RABBITMQ_ERRORS, or TimeoutError; the next one then connects again."""

    def __init__(self, url: str, task: str, queues: Collection[str]) -> None:
        """`task`: the name of the Celery task in each message."""
        self._url = url
        self._task = task
        self._queues = queues
        self._thread = ThreadPoolExecutor(1, "rabbitmq")
        self._connection: Connection | None = None
        self._channel: Any = None

    @property
    def is_connected(self) -> bool:
        """Whether the last call left a connection."""
        return self._connection is not None

    async def send(self, queue: str, messages: Sequence[Sequence[UUID]], *, first: bool) -> None:
        """Sends messages with these ids. `first`: they are delivered before those that wait. One
        without ids replaces all that wait: their responses are found in line (ADR 0041)."""
        await self._run(lambda: self._publish(queue, messages, priority=int(first)))

    async def lengths(self) -> dict[str, int]:
        """The messages in each queue."""
        return await self._run(self._declare)

    def close(self) -> None:
        """Ends the thread. A call that hangs ends with its time limit."""
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, call)

    def _call(self, call: Callable[[], ResultT]) -> ResultT:
        try:
            return call()
        except RABBITMQ_ERRORS:
            self._disconnect()
            raise

    def _connect(self) -> None:
        """kombu's `default_channel` would connect again for ever."""
        if self._connection is None:
            self._connection = Connection(self._url, transport_options=TRANSPORT_OPTIONS)
            self._connection.ensure_connection(max_retries=0, reraise_as_library_errors=False)
            self._channel = self._connection.channel()
            self._declare()

    def _declare(self) -> dict[str, int]:
        self._connect()
        lengths = {}
        for name in self._queues:
            declared: Any = task_queue(name)(self._channel).queue_declare()
            lengths[name] = declared.message_count
        return lengths

    def _publish(self, queue: str, messages: Sequence[Sequence[UUID]], priority: int) -> None:
        self._connect()
        producer = Producer(self._channel, auto_declare=False)
        if not all(messages) and self._channel is not None:
            self._channel.queue_purge(queue)
        for response_ids in messages:
            producer.publish(
                ([response_id.hex for response_id in response_ids], {}, {}),
                routing_key=queue,
                serializer="json",
                delivery_mode=_TRANSIENT,
                priority=priority,
                headers={"task": self._task, "id": uuid4().hex},
            )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
