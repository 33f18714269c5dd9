"""A Celery pool that runs a thousand responses in one asyncio event loop (ADR 0002).

Celery's thread (the hub) accepts messages; a uvloop in a second thread runs the responses. All code
that touches a Celery request runs on Celery's thread, through `hub.call_soon`. A message is
acknowledged when it is accepted: it is only a wake-up, the job is the row in Postgres.

The setting `worker_pool` selects this pool, because Celery's option `-P` knows only its own pools.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
import uvloop
from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.signals import worker_shutting_down
from kombu.serialization import loads

from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE
from worker.engine import Engine

if TYPE_CHECKING:
    from celery.worker.consumer.consumer import Consumer
    from kombu.asynchronous.hub import Hub

logger = structlog.get_logger()

_STOP_SLACK = 10.0
"""Seconds after the grace period in which runs are handed over. Then the process exits anyway:
sweeps of other workers find the responses that it still owns."""


def _noop() -> None:
    pass


class Job:
    """A running task as Celery sees it: it keeps a weak reference and can terminate it."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def terminate(self, _signum: int) -> None:
        """Called by Celery's revoke. Cancels of responses arrive in worker/control.py."""
        self._cancel()


class AsyncioPool(BasePool):
    """Runs the task `worker.run_response` in an event loop."""

    signal_safe = False
    uses_semaphore = False
    body_can_be_buffer = True
    task_join_will_block = False

    def on_start(self) -> None:
        """Starts the event loop and the engine; returns when the process can claim responses.

        Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable.
        """
        self.consumer: Consumer | None = None
        self.hub: Hub | None = None
        self.jobs: set[Job] = set()
        is_quarantine = self.app.settings.quarantine
        self._consumed = {QUARANTINE} if is_quarantine else {INTERACTIVE, BACKGROUND}
        self._accepted = 0
        """Messages that Celery's thread has given to the event loop,"""
        self._begun = 0
        """and those that the event loop has begun with."""
        self._balance_requested = False
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()
        self.engine = Engine(self.app.settings, self.limit, self._request_balance)
        asyncio.run_coroutine_threadsafe(self.engine.start(), self.loop).result()
        worker_shutting_down.connect(self._wake, weak=False)

    def _wake(self, **_: object) -> None:
        """Wakes Celery's poll after SIGTERM, which would else sleep until its next timer.

        Through the event loop, because a signal can interrupt any line of Celery's thread.
        """
        if self.hub is not None:
            self.loop.call_soon_threadsafe(self.hub.call_soon, _noop)

    def register_with_event_loop(self, hub: "Hub") -> None:
        """Takes Celery's event loop: all callbacks of Celery are called on its thread."""
        self.hub = hub

    def attach(self, consumer: "Consumer") -> None:
        """Takes Celery's consumer, whose queues this pool leaves and joins again."""
        self.consumer = consumer
        self._balance()

    # celery-types declares None as the result, but Celery uses the returned job.
    def on_apply(self, *positional: Any, **keywords: Any) -> Job:  # type: ignore[override]
        """Accepts (and acknowledges) one message and starts its response in the event loop."""
        callback, accept_callback = keywords["callback"], keywords["accept_callback"]
        _task, _id, request, body, content_type, content_encoding = positional[1]
        arguments, _, _ = loads(
            bytes(body), content_type, content_encoding, accept={"application/json"}
        )
        accept_callback(os.getpid(), time.monotonic())
        started_at = time.monotonic()
        self._accepted += 1
        queue = request["delivery_info"]["routing_key"]
        future = asyncio.run_coroutine_threadsafe(
            self._run_response(UUID(hex=arguments[0]), queue), self.loop
        )
        job = Job(future.cancel)
        self.jobs.add(job)  # Celery keeps a weak reference only

        def done(_: object) -> None:
            assert self.hub is not None
            self.hub.call_soon(self._finish_job, job, future, callback, started_at)

        future.add_done_callback(done)
        self._balance()
        return job

    async def _run_response(self, response_id: UUID, queue: str) -> None:
        """Runs in the event loop."""
        self._begun += 1
        await self.engine.run_from_message(response_id, queue)

    def _finish_job(self, job: Job, future: Any, callback: Any, started_at: float) -> None:
        """Reports the end of the task to Celery. Runs on Celery's thread."""
        self.jobs.discard(job)
        error = None if future.cancelled() else future.exception()
        seconds = time.monotonic() - started_at
        if error is None:
            callback((0, None, seconds))
        else:
            callback((1, ExceptionInfo((type(error), error, error.__traceback__)), seconds))

    def _request_balance(self) -> None:
        """Requests a balance on Celery's thread. Called in the event loop."""
        if self.hub is not None and not self._balance_requested:
            self._balance_requested = True
            self.hub.call_soon(self._balance)

    def _balance(self) -> None:
        """Leaves the queues for which no slot is free, and joins them again. Runs on Celery's
        thread.

        A full worker leaves all queues: it would only give their messages back.
        """
        self._balance_requested = False
        if self.consumer is None:
            return
        # The engine does not count a message that it has not begun with.
        pending = self._accepted - self._begun
        free = self.engine.free - pending
        if self.app.settings.quarantine:
            self._consume(QUARANTINE, free)
        else:
            self._consume(INTERACTIVE, free)
            # A large worker joins only when several slots are free: not for each end of a response.
            self._consume(
                BACKGROUND, self.engine.free_for_background - pending, spare=self.limit // 50
            )

    def _consume(self, queue: str, free: int, spare: int = 0) -> None:
        """Leaves the queue if no slot is free for its messages; joins it if more than `spare`
        are."""
        assert self.consumer is not None
        if queue in self._consumed and free <= 0:
            self._consumed.discard(queue)
            self.consumer.cancel_task_queue(queue)
        elif queue not in self._consumed and free > spare:
            self._consumed.add(queue)
            self.consumer.add_task_queue(queue)

    def on_stop(self) -> None:
        """Stops the engine. Celery calls this on its main thread after it has stopped consuming."""
        grace = self.app.settings.worker.longest_grace.total_seconds()
        stopping = asyncio.run_coroutine_threadsafe(self.engine.stop(), self.loop)
        try:
            stopping.result(timeout=grace + _STOP_SLACK)
        except TimeoutError:
            logger.warning("stop_timeout", running=len(self.jobs))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=2)

    def on_terminate(self) -> None:
        """Celery's cold shutdown: stops the engine in the same way."""
        self.on_stop()

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Does nothing: all jobs share this process's pid, so none may be ended by a signal."""
