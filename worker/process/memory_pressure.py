"""What a worker does when its memory runs short (ADR 0039): it claims nothing, hands responses
over, and fails one that does not fit although nothing else runs."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import structlog

from models.db.database import Pool
from models.ids import response_id as public_id
from models.process import release_free_memory
from worker import metrics
from worker.process.limits import MemoryBudget
from worker.run.end_state import StopReason
from worker.run.runner import Run

logger = structlog.get_logger()

_INTERVAL = 0.25
"""Seconds between two looks at the memory."""
_TRIM_INTERVAL = 5.0
_TRIM_INTERVAL_FULL = 1.0
"""Seconds between two calls that give freed memory back to the system; and while no response is
claimed."""
_RECONNECT_INTERVAL = 30.0
"""Seconds between two times that the connections to Postgres are closed: each keeps a buffer of the
size of its largest row."""
_SETTLING = 1.0
"""Seconds after which the memory of responses that were stopped must be free."""
_IDLE_TIME = 10.0
"""Seconds for which a worker without responses may be above the admission mark. Its memory is lost
to it, so it stops, and a supervisor starts another process."""
_LEAST_SHARE = 0.25
"""A response that runs alone is to blame for the memory only if it needs at least this share of
what the budget leaves for responses, or is still being read."""


class MemoryPressure:
    """Watches the memory of one worker, and acts on its runs."""

    def __init__(
        self,
        budget: MemoryBudget,
        pool: Pool,
        runs: Mapping[UUID, Run],
        on_capacity_changed: Callable[[], None],
    ) -> None:
        """`runs`: what the worker runs, now and later. `on_capacity_changed` is called when claims
        are allowed again."""
        self._budget = budget
        self._pool = pool
        self._runs = runs
        self._on_capacity_changed = on_capacity_changed
        self._is_full = False
        """No response is claimed."""
        self._wait_until = 0.0
        self._trim_at = self._reconnect_at = 0.0
        self._idle_since: float | None = None
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Looks several times a second. Returns at once if there is no budget."""
        while self._budget.is_limited:
            await asyncio.sleep(_INTERVAL)
            self._budget.measure()
            await self._trim()
            self._note_state()
            if self._budget.resident >= self._budget.pressure_mark:
                self._relieve()
            self._stop_if_idle()

    async def _trim(self) -> None:
        """Gives back what was freed. Without this, the process keeps most of what large histories
        have needed."""
        budget, now = self._budget, self._clock()
        if now >= self._trim_at and budget.resident > (budget.idle + budget.admission_mark) // 2:
            if self._is_full and now >= self._reconnect_at:
                self._reconnect_at = now + _RECONNECT_INTERVAL
                await self._pool.drain()
            self._trim_at = now + (_TRIM_INTERVAL_FULL if self._is_full else _TRIM_INTERVAL)
            # What a run leaves behind refers to itself if it was stopped. All generations are
            # collected only where no stream waits for that.
            gc.collect(0 if self._runs else 2)
            await asyncio.to_thread(release_free_memory)
            budget.measure()

    def _note_state(self) -> None:
        budget = self._budget
        if not self._is_full and budget.resident >= budget.admission_mark:
            self._is_full = True
            metrics.MEMORY_FULL.set(1)
            logger.warning("memory_pressure_began", **self._facts())
        elif self._is_full and budget.is_open:
            self._is_full = False
            metrics.MEMORY_FULL.set(0)
            logger.info("memory_pressure_ended", **self._facts())
        if budget.has_refused and budget.is_open:
            budget.has_refused = False
            self._on_capacity_changed()

    def _facts(self) -> dict[str, int]:
        return {
            "resident_bytes": self._budget.resident,
            "budget_bytes": self._budget.limit or 0,
            "running": len(self._runs),
        }

    def _relieve(self) -> None:
        """Makes room: at the pressure mark by background responses that are handed over when their
        turn is stored, at the limit by stopping the largest."""
        if self._budget.is_over_limit:
            if self._clock() >= self._wait_until:
                self._wait_until = self._clock() + _SETTLING
                self._stop_largest()
            return
        background = [run for run in self._runs.values() if run.is_background]
        if len(background) == len(self._runs):
            # One goes on: a worker that hands everything over makes no progress.
            background = sorted(background, key=lambda run: run.memory)[1:]
        excess = self._budget.resident - self._budget.admission_mark
        leaving = sum(run.memory for run in background if run.is_draining)
        for run in sorted(background, key=lambda run: run.memory, reverse=True):
            if leaving >= excess:
                return
            if run.is_draining:
                continue
            leaving += run.memory
            run.drain()
            metrics.MEMORY_HAND_OVERS.inc()
            logger.info("response_drained_for_memory", **_facts_of(run))

    def _stop_largest(self) -> None:
        """Stops as many as the excess needs; the last one is stopped only if it does not fit."""
        running = [run for run in self._runs.values() if not run.is_stopped]
        if len(running) < len(self._runs):
            return  # those that were stopped before are still being stored
        if len(running) == 1:
            self._fail_if_too_large(running[0])
            return
        excess = self._budget.resident - self._budget.admission_mark
        for run in _in_order_of_stopping(running)[:-1]:
            run.stop(StopReason.MEMORY)
            metrics.MEMORY_HAND_OVERS.inc()
            logger.warning("response_stopped_for_memory", **_facts_of(run))
            excess -= run.memory
            if excess <= 0:
                return

    def _fail_if_too_large(self, run: Run) -> None:
        is_large = run.memory >= _LEAST_SHARE * self._budget.headroom
        is_to_blame = is_large or not run.is_prepared
        run.stop(StopReason.TOO_LARGE if is_to_blame else StopReason.MEMORY)
        metrics.MEMORY_HAND_OVERS.inc()
        logger.warning("response_stopped_for_memory", too_large=is_to_blame, **_facts_of(run))

    def _stop_if_idle(self) -> None:
        """Stops a process that runs nothing and has no memory for a response all the same."""
        if self._runs or not self._is_full:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()
        elif self._clock() - self._idle_since >= _IDLE_TIME:
            logger.warning("worker_without_memory", **self._facts())
            self._idle_since = None
            os.kill(os.getpid(), signal.SIGTERM)


def _in_order_of_stopping(runs: Iterable[Run]) -> list[Run]:
    """Background responses first, and those with a call that must not run twice last."""
    return sorted(
        runs, key=lambda run: (run.has_unrepeatable_call, not run.is_background, -run.memory)
    )


def _facts_of(run: Run) -> dict[str, object]:
    return {
        "response": public_id(run.claim.id),
        "attempt": run.claim.attempt,
        "estimated_bytes": run.memory,
    }
