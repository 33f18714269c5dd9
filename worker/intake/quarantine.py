"""Which suspects a quarantine worker runs together (ADR 0022).

A suspect is a response whose workers crashed at least twice. One of the responses that ran in those
workers may be the cause; the others are innocent. The more crashes a suspect has, the smaller is
the group in which it runs. The last crashes happen while it runs alone, so they are its own.
"""

import asyncio
import time
from collections.abc import Mapping
from uuid import UUID

from models.config.settings import Settings
from models.lifecycle import Crashes
from models.ownership.claims import Ownership
from models.ownership.takeover import Claim
from worker.run.runner import Run

_RESERVED_SWEEPS = 3
"""Sweeps for which a suspect that must run alone keeps others away. Each sweep finds it again."""


class SuspectGroup:
    """The runs of a quarantine worker, and which responses may join them.

    A run does not count any more once it has lasted for `worker.probation`, or has finished a turn:
    others may take its place. A suspect that runs alone stays alone for that time. Then its crashes
    are forgotten as soon as another response is to be claimed, unless they are final.
    """

    def __init__(self, settings: Settings, ownership: Ownership, runs: Mapping[UUID, Run]) -> None:
        """`runs`: all runs of this process, where a claimed response is entered at once."""
        self._probation = settings.worker.probation.total_seconds()
        self._reserve_for = _RESERVED_SWEEPS * settings.lease.sweep.total_seconds()
        self._ownership = ownership
        self._runs = runs
        self._forgotten: set[Run] = set()
        """Runs whose crashes were forgotten."""
        self._reserved_until = 0.0
        """Monotonic time until which only a suspect that must run alone may be claimed."""
        self._lock = asyncio.Lock()
        """Held by a claim, so that the next one counts its run."""

    async def claim(self, response_id: UUID) -> Claim | None:
        """Claims the response if it may run beside those that run now. Raises as `take` does."""
        async with self._lock:
            self._forgotten &= set(self._runs.values())
            for run in self._runs.values():
                if self._runs_alone(run) and not await self._forget_crashes(run):
                    return None
            return await self._ownership.take(response_id, self._may_run)

    def _runs_alone(self, run: Run) -> bool:
        """Whether nothing may run beside it."""
        is_suspect = run.claim.end_reason is None and not run.has_finished_turn
        return is_suspect and run.claim.crashes.group_size == 1 and run not in self._forgotten

    async def _forget_crashes(self, run: Run) -> bool:
        """Ends the solitude of a suspect that has run alone for long enough. False: not yet."""
        if run.claim.crashes.is_final or not self._has_survived(run):
            return False
        await self._ownership.forget_crashes(run.claim)
        self._forgotten.add(run)
        return True

    def _may_run(self, crashes: Crashes) -> bool:
        if crashes.group_size == 1:
            if self._runs:
                self._reserve()
            return not self._runs
        if self._runs and time.monotonic() < self._reserved_until:
            return False
        counted = [
            run.claim.crashes.group_size
            for run in self._runs.values()
            if run.claim.end_reason is None and not self._has_survived(run)
        ]
        return len(counted) < min([crashes.group_size, *counted])

    def _reserve(self) -> None:
        """Lets the runs end without successors. Those that are no suspects any more leave now."""
        self._reserved_until = time.monotonic() + self._reserve_for
        for run in self._runs.values():
            if run.has_finished_turn:
                run.drain()

    def _has_survived(self, run: Run) -> bool:
        return run.has_finished_turn or time.monotonic() - run.started_at >= self._probation
