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

from models.redis.channels import BACKGROUND
from worker.engine import Engine
from worker.slots import reserved_slots

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
        self._consumes_background = True
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()
        self.engine = Engine(self.app.settings, self.limit)
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

    # celery-types declares None as the result, but Celery uses the returned job.
    def on_apply(self, *positional: Any, **keywords: Any) -> Job:  # type: ignore[override]
        """Accepts (and acknowledges) one message and starts its response in the event loop."""
        callback, accept_callback = keywords["callback"], keywords["accept_callback"]
        _task, _id, _request, body, content_type, content_encoding = positional[1]
        arguments, _, _ = loads(
            bytes(body), content_type, content_encoding, accept={"application/json"}
        )
        accept_callback(os.getpid(), time.monotonic())
        started_at = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(
            self.engine.claim_and_run(UUID(hex=arguments[0])), self.loop
        )
        job = Job(future.cancel)
        self.jobs.add(job)  # Celery keeps a weak reference only

        def done(_: object) -> None:
            assert self.hub is not None
            self.hub.call_soon(self._finish_job, job, future, callback, started_at)

        future.add_done_callback(done)
        self._throttle_background()
        return job

    def _finish_job(self, job: Job, future: Any, callback: Any, started_at: float) -> None:
        """Reports the end of the task to Celery. Runs on Celery's thread."""
        self.jobs.discard(job)
        self._throttle_background()
        error = None if future.cancelled() else future.exception()
        seconds = time.monotonic() - started_at
        if error is None:
            callback((0, None, seconds))
        else:
            callback((1, ExceptionInfo((type(error), error, error.__traceback__)), seconds))

    def _throttle_background(self) -> None:
        """Stops consuming the background queue while only reserved slots are free."""
        if self.consumer is None or self.app.settings.quarantine:
            return
        # The engine does not count a message that was accepted and not claimed yet; `jobs` does not
        # count an orphan that the sweep has claimed.
        unreserved = self.limit - reserved_slots(self.limit)
        free = min(self.engine.free_for_background, unreserved - len(self.jobs))
        if self._consumes_background and free <= 0:
            self._consumes_background = False
            self.consumer.cancel_task_queue(BACKGROUND)
        elif not self._consumes_background and free > self.limit // 50:
            self._consumes_background = True
            self.consumer.add_task_queue(BACKGROUND)

    def on_stop(self) -> None:
        """Stops the engine. Celery calls this on its main thread after it has stopped consuming."""
        grace = self.app.settings.worker.grace.total_seconds()
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
