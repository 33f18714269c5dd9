"""A Celery pool that is an asyncio event loop: a thousand streams in one process (design §6, ADR 0002).

Celery's own thread (the hub) accepts messages; a uvloop in a second thread runs the responses. Everything that touches a Celery
request goes back through `hub.call_soon` onto Celery's thread. Messages are acknowledged when they are accepted: a message is a
doorbell, and what it rings for is in Postgres.

Chosen by the setting `worker_pool`; `-P` accepts only Celery's own names.
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

if TYPE_CHECKING:
    from celery.worker.consumer.consumer import Consumer
    from kombu.asynchronous.hub import Hub

logger = structlog.get_logger()

_STOP_SLACK = 10.0
"""Seconds beyond the grace period after which the process ends with what is left: sweepers find it."""


def _noop() -> None:
    pass


class Job:
    """What Celery holds of a running task: something it can refer to weakly, and terminate."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def terminate(self, _signum: int) -> None:
        """Celery's revoke; our own cancels do not come this way."""
        self._cancel()


class AsyncioPool(BasePool):
    """Runs `worker.run_response` in an event loop of its own."""

    signal_safe = False
    uses_semaphore = False
    body_can_be_buffer = True
    task_join_will_block = False

    def on_start(self) -> None:
        """Starts the loop and the engine in it; returns when the process can claim. Raises when Postgres is away."""
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
        """SIGTERM: Celery's poll would go on sleeping until its next timer. Through our loop, because the signal may have hit anywhere."""
        if self.hub is not None:
            self.loop.call_soon_threadsafe(self.hub.call_soon, _noop)

    def register_with_event_loop(self, hub: "Hub") -> None:
        """Celery's own loop, on whose thread all its callbacks belong."""
        self.hub = hub

    def on_apply(self, *positional: Any, **keywords: Any) -> Job:  # type: ignore[override]  # celery-types says None; Celery takes a job
        """Takes one message: accepted (and acknowledged) now, run in the loop."""
        args, callback, accept_callback = (
            positional[1],
            keywords["callback"],
            keywords["accept_callback"],
        )
        _task, _id, _request, body, content_type, content_encoding = args
        arguments, _, _ = loads(
            bytes(body), content_type, content_encoding, accept={"application/json"}
        )
        accept_callback(os.getpid(), time.monotonic())
        started_at = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(
            self.engine.claim_and_run(UUID(hex=arguments[0])), self.loop
        )
        job = Job(future.cancel)
        self.jobs.add(job)  # Celery keeps only a weak reference

        def done(_: object) -> None:
            assert self.hub is not None
            self.hub.call_soon(self._finish_job, job, future, callback, started_at)

        future.add_done_callback(done)
        self._throttle_background()
        return job

    def _finish_job(self, job: Job, future: Any, callback: Any, started_at: float) -> None:
        """On Celery's thread: the request is over."""
        self.jobs.discard(job)
        self._throttle_background()
        error = None if future.cancelled() else future.exception()
        if error is None:
            callback((0, None, time.monotonic() - started_at))
        else:
            callback(
                (
                    1,
                    ExceptionInfo((type(error), error, error.__traceback__)),
                    time.monotonic() - started_at,
                )
            )

    def _throttle_background(self) -> None:
        """The last tenth of the streams is for those who wait on the line: past nine tenths `background` is left to other workers."""
        if self.consumer is None or self.app.settings.quarantine:
            return
        # A bell that was just accepted is a job before it is a claim; what the sweeper took is a run without being a job.
        free = min(self.engine.free_for_background, self.limit - self.limit // 10 - len(self.jobs))
        if self._consumes_background and free <= 0:
            self._consumes_background = False
            self.consumer.cancel_task_queue(BACKGROUND)
        elif not self._consumes_background and free > self.limit // 50:
            self._consumes_background = True
            self.consumer.add_task_queue(BACKGROUND)

    def on_stop(self) -> None:
        """SIGTERM: hands over (design §4.7), on Celery's main thread, after it has stopped consuming."""
        grace = self.app.settings.worker.grace.total_seconds()
        stopping = asyncio.run_coroutine_threadsafe(self.engine.stop(), self.loop)
        try:
            stopping.result(timeout=grace + _STOP_SLACK)
        except TimeoutError:
            logger.warning("stopped_unfinished", running=len(self.jobs))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=2)

    def on_terminate(self) -> None:
        """A cold stop hands over just the same."""
        self.on_stop()

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Every job has this process's pid: a job is ended through `Job.terminate`, never by a signal."""
