"""What begins to run in the slots of a worker, whether a Celery message, the line or the sweep has
found it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import structlog

from models.celery.queue import JobQueue
from models.db.database import DATABASE_UNAVAILABLE
from models.errors import LeaseLost
from models.ids import response_id as public_id
from models.lifecycle import Lane
from models.load.pacing import Pacer
from models.ownership.claims import Ownership
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, QUARANTINE
from worker.intake.capacity import Capacity
from worker.intake.line import Line
from worker.intake.quarantine import SuspectGroup

logger = structlog.get_logger()

_STARTED_IN_A_TURN = 8
"""Runs that begin in one turn of the event loop. Up to its request to the upstream, each takes half
a millisecond; fifty that were claimed together would delay all streams that run."""
_BATCH_PAUSE = 0.005
"""Seconds between two starts of responses of batches. A short one takes 3 ms of the event loop in
all, so they never fill it, however many wait: clients wait for the others."""
_CLAIMED_TOGETHER = 50
"""Orphans that are claimed with one transaction. Their runs start when it is committed."""
_ORPHAN_CLAIMS = 2
"""Such transactions at a time: while one waits for Postgres, this process works for the other. The
statements of the runs use the same connections."""

ResultT = TypeVar("ResultT")


class Intake:
    """Claims responses and starts their runs."""

    def __init__(
        self,
        capacity: Capacity,
        ownership: Ownership,
        suspects: SuspectGroup | None,
        job_queue: JobQueue,
        run: Callable[[Claim], Awaitable[None]],
        on_capacity_changed: Callable[[], None],
    ) -> None:
        """`suspects`: those of a quarantine worker. `run`: runs a claimed response, which is in
        `capacity.runs` at once. `on_capacity_changed` is called after each change of the free
        slots."""
        self.line = Line(self, capacity, ownership, job_queue)
        self._capacity = capacity
        self._ownership = ownership
        self._suspects = suspects
        self._job_queue = job_queue
        self._run = run
        self._on_capacity_changed = on_capacity_changed
        self._starts = Pacer(_STARTED_IN_A_TURN)
        self._batch_starts = asyncio.Lock()
        self._orphan_claims = asyncio.Semaphore(_ORPHAN_CLAIMS)
        self._tasks: set[asyncio.Task[None]] = set()

    def free_for(self, queue: str) -> int:
        """Free slots for the responses of this queue."""
        return self._capacity.free_for(queue)

    def is_crowded(self, queue: str) -> bool:
        """Whether responses of this queue may be waiting in line (worker/intake/line.py)."""
        return self.line.is_crowded(queue)

    def run_from_message(self, response_ids: Sequence[UUID], queue: str) -> None:
        """Starts the claims and runs of the responses of a Celery message, or of others whose turn
        it is, if there are more than free slots.

        Suspects without a free slot go back to their queue, for a worker that has one.
        """
        ids = [each for each in dict.fromkeys(response_ids) if each not in self._capacity]
        free = self.free_for(queue)
        if queue != QUARANTINE and (
            not response_ids or len(ids) > free or self.line.is_crowded(queue)
        ):
            self.line.choose_soon(queue, ids)
            return
        if len(ids) > free:
            self._job_queue.give_back(ids[free:], queue)
        self._capacity.count_claims(len(ids[:free]))
        self._capacity.claim(ids[:free], background=queue == BACKGROUND)
        for response_id in ids[:free]:
            self._start(self._claim_and_run(response_id, self._take(response_id)))
        self.line.note_full()

    def run_chosen(self, claims: Sequence[Claim]) -> None:
        """Runs responses that were claimed in line. They are in `capacity.claiming` already."""
        self._capacity.count_claims(len(claims))
        self._run_claims(claims)

    def spawn(self, orphans: Sequence[UUID], *, to_end: bool = False) -> None:
        """Claims and runs responses without a live owner in tasks, as many as slots are free: for
        the sweeper.

        `to_end`: the responses are only to be ended, for which there are more slots.
        """
        capacity = self._capacity
        free = capacity.free_for_endings if to_end else capacity.free_for_background
        ids = [orphan for orphan in orphans if orphan not in capacity][:free]
        if not ids:
            return
        capacity.claim(ids, background=not to_end)
        capacity.count_claims(len(ids))
        self.line.note_full()
        self._on_capacity_changed()
        if self._suspects is not None:
            for response_id in ids:
                self._start(self._claim_and_run(response_id, self._take_orphan(response_id)))
            return
        for first in range(0, len(ids), _CLAIMED_TOGETHER):
            self._start(self._claim_orphans(ids[first : first + _CLAIMED_TOGETHER]))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run_claims(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._start(self._claim_and_run(claim.id, self._ownership.with_log(claim)))
        self._on_capacity_changed()

    async def _claim_orphans(self, ids: Sequence[UUID]) -> None:
        """Claims these responses with one transaction, and starts their runs. They are in
        `capacity.claiming` already; each that was claimed stays there until it runs.

        If the transaction fails, each response is claimed alone: one of them may be the cause.
        """
        claims: list[Claim] | None = None
        try:
            async with self._orphan_claims:
                taking = self._ownership.take_orphans([] if self._capacity.is_stopping else ids)
                claims = await self._claim(taking, ids)
        except Exception:
            logger.exception("orphans_not_claimed", responses=len(ids))
        if claims is None:
            for response_id in ids:
                self._start(self._claim_and_run(response_id, self._take_orphan(response_id)))
            return
        self._capacity.end_claims(set(ids) - {claim.id for claim in claims})
        self._run_claims(claims)

    async def _take_orphan(self, response_id: UUID) -> Claim | None:
        async with self._orphan_claims:
            return await self._take(response_id)

    async def _take(self, response_id: UUID) -> Claim | None:
        if self._capacity.is_stopping:
            return None
        if self._suspects is not None:
            return await self._suspects.claim(response_id)
        return await self._ownership.take(response_id)

    async def _claim_and_run(self, response_id: UUID, taking: Awaitable[Claim | None]) -> None:
        """Does nothing if the response cannot be claimed. It is in `capacity.claiming` already."""
        try:
            try:
                claim = await self._claim(taking, [response_id])
                if claim is not None:
                    if claim.row.lane == Lane.BATCH:
                        async with self._batch_starts:
                            await asyncio.sleep(_BATCH_PAUSE)
                    else:
                        await self._starts.wait(claim.row.project_id)
                    await self._ownership.lead_follow_ups(claim)
            finally:
                self._capacity.end_claims([response_id])
            if claim is not None:
                await self._run(claim)
        except Exception:
            # Celery would drop it. The response is released, or the next sweep finds it.
            logger.exception("response_not_run", response=public_id(response_id))
        finally:
            self._on_capacity_changed()

    async def _claim(self, taking: Awaitable[ResultT], ids: Sequence[UUID]) -> ResultT | None:
        """Awaits a claim of these responses. None if its outcome is unknown, or if this process was
        declared dead."""
        try:
            return await taking
        except DATABASE_UNAVAILABLE as error:
            # If Postgres has stored the claim, the next heartbeat finds and releases it.
            logger.warning(
                "claim_outcome_unknown",
                responses=list(map(public_id, ids)),
                error=str(error).strip(),
            )
        except LeaseLost:
            logger.warning("claim_fenced", responses=list(map(public_id, ids)))
        return None
