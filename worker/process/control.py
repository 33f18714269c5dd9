"""How runs are stopped from outside: by cancels and other requests, because they belong to another
process by now, and when the process stops.

Redis delivers cancels at once, on the control channel. While it is unavailable the heartbeat
delivers them, within two seconds (I10): it compares the runs of this process with what the database
says it owns. The runs of a stopping worker end by themselves, or are handed over to other workers.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import structlog

from models.config.groups import WorkerSettings
from models.config.settings import Settings
from models.db.queries.leases import OwnedResponse
from models.db.queries.run import StoredLog
from models.ownership.claims import Ownership, ReleaseReason
from models.redis.channels import control
from models.redis.client import redis_client
from models.redis.raw_connection import RawConnection, listen, stay_connected, subscribe
from models.tasks import SideTasks
from worker import metrics
from worker.run.end_state import StopReason
from worker.run.runner import Run

logger = structlog.get_logger()

_SILENCE = 4.0
"""Seconds without a reply after which the channel is connected again."""


class ControlListener:
    """Receives the ids of responses with a recorded cancel."""

    def __init__(
        self, settings: Settings, worker_id: UUID, on_cancel: Callable[[UUID], None]
    ) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listens, and reconnects after an error. Never returns."""
        redis = redis_client(self._settings, f"control-{self._worker_id.hex}", timeout=None)
        try:
            await stay_connected(redis, self._listen, "control_channel_unavailable")
        finally:
            await redis.aclose()

    async def _listen(self, connection: RawConnection) -> None:
        for reply in await subscribe(connection, control(self._worker_id)):
            self._receive(reply)
        await listen(connection, self._receive, _SILENCE)

    def _receive(self, reply: Any) -> None:
        if reply[0] != b"message":
            return
        try:
            response_id = UUID(hex=reply[2].decode())
        except ValueError:
            # Anything may be published to a channel.
            logger.exception("control_message_unreadable")
        else:
            self._on_cancel(response_id)


_PER_SECOND = 1000
"""Responses that are handed over in a second: about what a statement of PostgreSQL releases and
other workers claim in that time."""
_PORTION = 50
"""Responses that are handed over at a time."""


class HandOver:
    """Ends the runs of a stopping worker.

    Runs that do not end within the grace period are handed over, with their logs stored. Many runs
    are handed over in portions, so that the last portion is due at the end of the grace period: all
    at once would keep the responses from running for as long as all of them take together. Those
    that began last come first; they lose the least. A run with a tool call that must not be
    repeated has a longer grace period (`worker.call_grace`).
    """

    def __init__(
        self, runs: Mapping[UUID, Run], claiming: Collection[UUID], settings: WorkerSettings
    ) -> None:
        """`runs`, `claiming`: what the worker runs and claims, now and later."""
        self._runs = runs
        self._claiming = claiming
        self._grace = settings.grace.total_seconds()
        self._longest_grace = settings.longest_grace.total_seconds()
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Returns when nothing runs any more."""
        stopping_at = self._clock()
        # Portions begin in the second half of the grace period at the earliest.
        in_portions = min(self._grace / 2, len(self._runs) / _PER_SECOND)
        if not await self._is_idle_at(stopping_at + self._grace - in_portions):
            await self._hand_over_in_portions(in_portions)
        if not await self._is_idle_at(stopping_at + self._longest_grace):
            for run in list(self._runs.values()):
                run.stop(StopReason.HAND_OVER)
            await self._wait_until_idle()

    async def _hand_over_in_portions(self, seconds: float) -> None:
        """Begins the last portion after about `seconds`."""
        started_at = self._clock()
        runs = sorted(self._runs.values(), key=lambda run: run.started_at, reverse=True)
        for start in range(0, len(runs), _PORTION):
            due = started_at + seconds * min(1.0, (start + _PORTION) / len(runs))
            if await self._is_idle_at(due):
                return
            for run in runs[start : start + _PORTION]:
                if not run.has_unrepeatable_call:
                    run.stop(StopReason.HAND_OVER)

    async def _is_idle_at(self, deadline: float) -> bool:
        """Waits until nothing runs, or until the deadline (of the loop's clock)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wait_until_idle()
        return not self._runs and not self._claiming

    async def _wait_until_idle(self) -> None:
        while self._runs or self._claiming:  # noqa: ASYNC110  (only while stopping)
            await asyncio.sleep(0.02)


_TIMEOUT = 5.0
"""Seconds for the comparison of all logs after a failover."""


class RunComparison:
    """The comparison of one process. The thread of its heartbeat requests it; it runs in the event
    loop."""

    def __init__(
        self,
        runs: Mapping[UUID, Run],
        claiming: Collection[UUID],
        on_capacity_changed: Callable[[], None],
    ) -> None:
        """`runs`, `claiming`: those of `Capacity`."""
        self._runs = runs
        self._claiming = claiming
        self._on_capacity_changed = on_capacity_changed

    def start(
        self,
        ownership: Ownership,
        side_tasks: SideTasks,
        wait_until_known: Callable[[], Awaitable[None]],
    ) -> None:
        """Called in the event loop, before the first heartbeat. `wait_until_known`: waits for
        claims of which it is not known yet what they claim (worker/intake/line.py)."""
        self._loop = asyncio.get_running_loop()
        self._ownership = ownership
        self._side_tasks = side_tasks
        self._wait_until_known = wait_until_known

    def on_heartbeat(self, sent: float, responses: list[OwnedResponse]) -> None:
        """Called on the heartbeat's thread with what the database counts as ours."""
        self._loop.call_soon_threadsafe(self._reconcile, sent, responses)

    def incomplete_logs(self, stored: list[StoredLog]) -> list[UUID]:
        """Called on the heartbeat's thread after a failover. Returns the responses of which less is
        stored than is known here, and stops their runs. Raises TimeoutError."""
        comparison = asyncio.run_coroutine_threadsafe(self._stop_incomplete(stored), self._loop)
        return comparison.result(timeout=_TIMEOUT)

    def _reconcile(self, sent: float, responses: list[OwnedResponse]) -> None:
        """Stops a run that this process no longer owns, or whose stop others have requested.
        Releases a response that it owns and does not run. `sent`: monotonic time at which the query
        was sent; its result may lack a run that started later.
        """
        # The lease may have been too old to claim anything until now.
        self._on_capacity_changed()
        owned = {response.id: response for response in responses}
        for response_id, run in list(self._runs.items()):
            response = owned.get(response_id)
            is_current = response is not None and response.attempt == run.claim.attempt
            if not is_current and run.started_at < sent:
                run.stop(StopReason.LOST)
            elif response is not None and (reason := _requested_stop(response, run)) is not None:
                run.stop(reason)
        for response_id, response in owned.items():
            if response_id not in self._runs and response_id not in self._claiming:
                self._side_tasks.start(self._release_unknown(response_id, response.attempt))

    async def _stop_incomplete(self, stored: list[StoredLog]) -> list[UUID]:
        """Stops the runs of which less is stored than this process knows to be stored; returns
        them, and responses that have ended here and not in the database."""
        # Replies that the server before has sent are processed first.
        await asyncio.sleep(0.1)
        incomplete = []
        for log in stored:
            run = self._runs.get(log.id)
            if run is not None and run.claim.attempt != log.attempt:
                continue
            if run is not None and run.flushed_number > log.log_end:
                run.stop(StopReason.LOST)
                incomplete.append(log.id)
            elif run is None and log.id not in self._claiming:
                incomplete.append(log.id)
        return incomplete

    async def _release_unknown(self, response_id: UUID, attempt: int) -> None:
        await self._wait_until_known()
        if response_id in self._runs or response_id in self._claiming:
            return
        await self._ownership.release_unknown(response_id, attempt)
        metrics.ATTEMPTS.labels(ReleaseReason.RETURNED.value).inc()


def _requested_stop(response: OwnedResponse, run: Run) -> StopReason | None:
    """What others requested of the response; a cancel has precedence (I10)."""
    if response.cancelled or response.abandoned:
        return StopReason.CANCEL
    if response.failed:
        return StopReason.FAIL
    # A row that was read before this run's claim belongs to an attempt that was released.
    is_current = response.attempt == run.claim.attempt
    return StopReason.REQUEUE if response.requeued and is_current else None
