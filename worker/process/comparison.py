"""Compares the runs of this process with what the database says it owns."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from uuid import UUID

from models.db.queries.leases import OwnedResponse
from models.db.queries.run import StoredLog
from models.ownership.claims import Ownership, ReleaseReason
from models.side_tasks import SideTasks
from worker import metrics
from worker.run.end_state import StopReason
from worker.run.runner import Run

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
