"""A Celery pool that runs a thousand responses in one asyncio event loop (ADR 0002).

Celery's thread starts and stops the process; a uvloop in a second thread reads the messages and
runs the responses. Nothing waits for the other thread between the start and the stop
(docs/architecture.md).

The setting `worker_pool` selects this pool, because Celery's option `-P` knows only its own pools.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

import structlog
import uvloop
from celery.concurrency.base import BasePool

from worker.celery.wakeups import WakeUps
from worker.process.engine import Engine

logger = structlog.get_logger()

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
