"""What a worker runs while more responses wait than it has slots (ADR 0041).

As long as this worker has a slot for each response whose wake-up it reads, it claims the ids of the
wake-ups. Once all slots of a queue were taken, others may be waiting in line. Then a wake-up only
says that somebody waits: Postgres chooses whose turn it is. That ends as soon as the line has
fewer responses than there are free slots.

Foreground and background responses are two lines. A slot that becomes free goes to the background
line if fewer background responses run here than foreground ones must leave them, and some may be
waiting (worker/intake/capacity.py). That ends too when the line is empty.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import structlog

from models.celery.queue import JobQueue
from models.db.database import DATABASE_UNAVAILABLE, RETRY_DELAY
from models.ids import new_uuid
from models.ownership.claims import Ownership
from models.ownership.line import ChosenClaim, ClaimRequest, ProjectShare
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, INTERACTIVE
from worker.intake.capacity import Capacity

logger = structlog.get_logger()


class ProjectShares:
    """The running responses of each project, and how much each one was served while others waited.

    The second is start-time fair queueing: a project's next response begins at a virtual time, and
    each response that is claimed moves the project on by 1 / weight. The clock stands at the latest
    beginning. A project that comes back later gets nothing for the time in which it wanted nothing.
    """

    def __init__(self) -> None:
        self._running: Counter[UUID] = Counter()
        self._next: dict[UUID, float] = {}
        """project -> the virtual time at which its next response begins, if that is to come"""
        self._now = 0.0

    def begin(self, project: UUID) -> None:
        """A response of the project runs here now."""
        self._running[project] += 1

    def end(self, project: UUID) -> None:
        """It runs here no more."""
        self._running[project] -= 1
        if not self._running[project]:
            del self._running[project]

    def serve(self, chosen: Iterable[ChosenClaim]) -> None:
        """These responses were claimed while others waited."""
        for each in chosen:
            project = each.claim.row.project_id
            start = max(self._now, self._next.get(project, 0.0))
            self._now = start
            self._next[project] = start + 1 / each.weight
        self._next = {project: at for project, at in self._next.items() if at > self._now}

    def known(self) -> dict[UUID, ProjectShare]:
        """Each project that uses this worker, or has lately."""
        return {
            project: ProjectShare(
                self._running[project], max(0.0, self._next.get(project, 0.0) - self._now)
            )
            for project in {*self._running, *self._next}
        }


_MAX_CHOSEN = 50
"""Responses that are chosen with one statement."""
_MAX_NAMED = 512
"""Ids of wake-ups that are kept for the next choice. Other workers learn of a dropped one two
seconds later."""
_WAKE_UP_TIME = 0.05
"""Seconds for which slots that are kept for background responses wait for a wake-up. Then Postgres
chooses without one: another worker may have read it."""
_NEWCOMER_POLL = 0.5
"""Seconds between two looks of a full worker for newcomers that find nobody."""
_NEXT_NEWCOMER = 0.05
"""Seconds from a look that has found somebody to the next one: short responses of a project follow
each other in its slot of the reserve."""


class Starter(Protocol):
    """Starts what was chosen (worker/intake/intake.py)."""

    def spawn(self, orphans: Sequence[UUID]) -> None: ...

    def run_chosen(self, claims: Sequence[Claim]) -> None: ...


@dataclass(slots=True)
class _QueueState:
    is_crowded: bool = False
    """Others may be waiting in line: all slots were taken at some time since a choice found fewer
    responses than it wanted."""
    named: list[UUID] = field(default_factory=list)
    """ids of wake-ups, for the next choice"""
    is_due: bool = False
    """The next choice begins in this turn of the event loop."""


class Line:
    """Chooses, for one worker, what of the line is next."""

    def __init__(
        self, starter: Starter, capacity: Capacity, ownership: Ownership, job_queue: JobQueue
    ) -> None:
        """A slot for which a choice is on its way has a made-up id in `capacity.claiming`."""
        self.shares = ProjectShares()
        self._starter = starter
        self._capacity = capacity
        self._ownership = ownership
        self._job_queue = job_queue
        self._queues = {BACKGROUND: _QueueState(), INTERACTIVE: _QueueState()}
        self._choices: set[asyncio.Task[int]] = set()
        self._interrupted: list[UUID] = []
        """Orphans that are not in line, because their owner has crashed."""
        self._is_turn_of_line = False
        self._look: asyncio.TimerHandle | None = None
        """Begins a choice for the slots that are kept for background responses."""

    def is_crowded(self, queue: str) -> bool:
        """Whether responses of this queue may be waiting in line."""
        return queue in self._queues and self._queues[queue].is_crowded

    def note_full(self) -> None:
        """Slots were taken just now."""
        for queue, state in self._queues.items():
            state.is_crowded = state.is_crowded or not self._capacity.free_for(queue)

    def choose_soon(self, queue: str, ids: Collection[UUID]) -> None:
        """Chooses for all free slots of this queue, once the other messages that came with this one
        are read. `ids`: of its wake-up."""
        state = self._queues[queue]
        state.named = [*state.named, *ids][-_MAX_NAMED:]
        if not state.is_due:
            state.is_due = True
            asyncio.get_running_loop().call_soon(self._choose_for, queue)

    def choose_old(self, max_rows: int, waiting: timedelta) -> None:
        """Chooses from both queues what has waited for so long: its wake-up was lost."""
        if max_rows > 0:
            self._start(_Wanted((BACKGROUND, INTERACTIVE), max_rows, waiting=waiting))

    def interrupted(self, orphans: Sequence[UUID]) -> None:
        """These responses, whose owners have crashed, share the next slots with the line."""
        self._interrupted = list(orphans)

    async def start_newcomers(self) -> None:
        """Starts responses of projects that have none here while others have all slots (ADR 0041).
        Never returns.

        A full worker reads no wake-ups: another one may have a slot. So this looks at the newest
        ones without taking them, and Postgres chooses among all that wait.
        """
        found = 0
        while True:
            await asyncio.sleep(_NEXT_NEWCOMER if found else _NEWCOMER_POLL)
            found = 0
            for queue in (INTERACTIVE, BACKGROUND):
                if self._capacity.free_for_newcomers(queue):
                    newest = await self._job_queue.newest(queue)
                    found += await self._choose_newcomers(queue, newest)

    async def _choose_newcomers(self, queue: str, ids: Sequence[UUID]) -> int:
        """Chooses from this queue, for the slots of the reserve, the next response of projects that
        have none here. `ids`: of wake-ups that are in the queue still. Returns how many begin."""
        free = min(self._capacity.free_for_newcomers(queue), _MAX_CHOSEN)
        if not free:
            return 0
        wanted = _Wanted((queue,), free, ids[-_MAX_NAMED:], only_newcomers=True)
        return await self._start(wanted)

    def expect_background(self) -> None:
        """Background responses may be waiting in line."""
        self._capacity.background_waits = True

    def on_capacity_changed(self) -> None:
        """Slots may have become free. If some are kept for background responses, a choice for them
        begins soon: with the next wake-up, or without one."""
        if self._look is None and self._capacity.kept_for_background:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_WAKE_UP_TIME, self._look_for_background)

    async def wait_until_known(self) -> None:
        """Waits for the outcome of each choice that is on its way."""
        if self._choices:
            await asyncio.wait(set(self._choices))

    def _look_for_background(self) -> None:
        self._look = None
        if self._capacity.kept_for_background:
            self.choose_soon(BACKGROUND, ())

    def _choose_for(self, queue: str) -> None:
        state = self._queues[queue]
        ids, state.named, state.is_due = state.named, [], False
        if queue == BACKGROUND:
            self._spawn_interrupted()
        free = min(self._capacity.free_for(queue), _MAX_CHOSEN)
        self._start(_Wanted((queue,), free, ids))

    def _spawn_interrupted(self) -> None:
        """Gives interrupted responses half of the free slots; a single one in turn."""
        self._is_turn_of_line = bool(self._interrupted) and not self._is_turn_of_line
        if self._is_turn_of_line:
            number = -(-self._capacity.free_for(BACKGROUND) // 2)
            self._starter.spawn(self._interrupted[:number])
            del self._interrupted[:number]

    def _start(self, wanted: "_Wanted") -> asyncio.Task[int]:
        places = {new_uuid() for _ in range(wanted.max_rows)}
        self._capacity.claim(places, background=BACKGROUND in wanted.queues)
        if places:
            self.note_full()
        task = asyncio.create_task(self._choose(wanted, places))
        self._choices.add(task)
        task.add_done_callback(self._choices.discard)
        return task

    async def _choose(self, wanted: "_Wanted", places: Collection[UUID]) -> int:
        """Returns how many responses begin."""
        try:
            chosen = await self._claim(wanted, places)
        except DATABASE_UNAVAILABLE as error:
            # If Postgres has stored the claims, the next heartbeat finds and releases them.
            logger.warning("choice_outcome_unknown", error=str(error).strip())
            self._note_result(wanted, found_all=False)
            await asyncio.sleep(RETRY_DELAY)
            self._announce(wanted)
            return 0
        except Exception:
            # The sweep tries it again.
            logger.exception("choice_failed")
            self._note_result(wanted, found_all=False)
            return 0
        self._note_result(wanted, found_all=len(chosen) == wanted.max_rows)
        self.shares.serve(chosen)
        self._starter.run_chosen([each.claim for each in chosen])
        if wanted.only_newcomers:
            return len(chosen)
        if len(chosen) == wanted.max_rows:
            self._announce(wanted)
        elif wanted.is_whole_line:
            for queue in wanted.queues:
                self._queues[queue].is_crowded = not self._capacity.free_for(queue)
        if wanted.max_rows:
            await self._confirm(set(wanted.ids) - {each.claim.id for each in chosen})
        return len(chosen)

    def _note_result(self, wanted: "_Wanted", *, found_all: bool) -> None:
        """Notes whether more background responses wait. `found_all`: the choice has found as many
        responses as it wanted."""
        if BACKGROUND in wanted.queues and wanted.is_whole_line:
            self._capacity.background_waits = found_all or bool(self._interrupted)

    async def _claim(self, wanted: "_Wanted", places: Collection[UUID]) -> list[ChosenClaim]:
        """Claims what is next. The claims are in `capacity.claiming` then, instead of `places`."""
        if not wanted.max_rows:
            # The next choice, here or elsewhere, begins when it may choose them.
            await self._confirm(wanted.ids)
            return []
        try:
            chosen = await self._ownership.take_next(
                ClaimRequest(
                    max_rows=wanted.max_rows,
                    kinds=[queue == BACKGROUND for queue in wanted.queues],
                    slots=self._capacity.slots,
                    shares=self.shares.known(),
                    ids=wanted.ids,
                    waiting=wanted.waiting,
                    only_newcomers=wanted.only_newcomers,
                )
            )
            for each in chosen:
                self._capacity.claim([each.claim.id], background=each.claim.row.background)
        finally:
            self._capacity.end_claims(places)
        return chosen

    async def _confirm(self, ids: Collection[UUID]) -> None:
        with contextlib.suppress(*DATABASE_UNAVAILABLE):
            await self._ownership.confirm(ids)

    def _announce(self, wanted: "_Wanted") -> None:
        """More may be waiting: another worker may have a slot for it."""
        for queue in wanted.queues:
            self._job_queue.announce(queue)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a choice is made for."""

    queues: Sequence[str]
    max_rows: int
    ids: Sequence[UUID] = ()
    waiting: timedelta = timedelta(0)
    only_newcomers: bool = False

    @property
    def is_whole_line(self) -> bool:
        """Whether all responses in line were compared."""
        return not self.waiting and not self.only_newcomers
