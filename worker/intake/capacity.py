"""How many responses a worker runs at a time, and how many more it may claim."""

from collections import Counter
from collections.abc import Callable, Collection
from uuid import UUID

from models.load.fair_queue import ReservedSlots
from models.redis.channels import BACKGROUND
from worker.process.limits import MemoryBudget, background_slots, reserved_slots
from worker.run.runner import Run

_ENDING_SLOTS = 16
"""Responses above the slots that may be claimed only to be ended. Each takes milliseconds, and none
may wait for a run to end."""


class Capacity:
    """The slots of one process, what runs in them, and what is about to."""

    def __init__(
        self, slots: int, memory: MemoryBudget, may_claim: Callable[[], bool], *, is_shared: bool
    ) -> None:
        """`slots`: how many responses run at a time. `may_claim`: whether the process is sure of
        its lease. `is_shared`: between foreground and background responses, each of which leave
        some slots to the others."""
        self.slots = slots
        self.runs: dict[UUID, Run] = {}
        self.claiming: Counter[UUID] = Counter()
        """By response how many claims of it are on their way: a sweep and a choice of the line may
        have found the same one, and the end of one claim is not that of the other."""
        self.is_stopping = False
        self.background_waits = False
        """Background responses may be waiting in line. Set by worker/intake/line.py."""
        self._background: set[UUID] = set()
        """The background responses among `runs` and `claiming`."""
        self._is_shared = is_shared
        self._reserved = reserved_slots(slots) if is_shared else 0
        self._division = ReservedSlots.beside(slots) if is_shared else ReservedSlots(slots, 0)
        self._memory = memory
        self._may_claim = may_claim

    @property
    def most(self) -> int:
        """The slots, with those for projects that have nothing here."""
        return self._division.most

    @property
    def free(self) -> int:
        """Free slots; none while the process stops, is not sure of its lease, or has no memory for
        another response."""
        return self._memory.claims_that_fit(
            self._division.free(self._used - self._background_in_reserve) if self._may_begin else 0
        )

    @property
    def free_for_background(self) -> int:
        """Free slots without those reserved for foreground responses. As long as fewer background
        responses run than foreground ones must leave them, they may use those too."""
        free = self.free
        return max(0, free - self._reserved, self._kept_for_background(free))

    @property
    def kept_for_background(self) -> int:
        """Free slots that foreground responses leave to background ones that wait."""
        return self._kept_for_background(self.free) if self.background_waits else 0

    @property
    def free_for_endings(self) -> int:
        """How many responses may be claimed that are only to be ended."""
        return max(0, self.most + _ENDING_SLOTS - self._used) if self._may_begin else 0

    def free_for(self, queue: str) -> int:
        """Free slots for the responses of this queue."""
        if queue == BACKGROUND:
            return self.free_for_background
        return self.free - self.kept_for_background

    def free_for_newcomers(self, queue: str) -> int:
        """Slots of the reserve that projects with nothing here may take, one each, for responses of
        this queue; 0 as long as there are others for anybody."""
        if not self._may_begin or self.free_for(queue) > 0:
            return 0
        free = self._division.free_for_newcomers(self._used)
        if queue == BACKGROUND:
            # Newcomers leave to foreground responses what the others do.
            free = min(free, self.most - self._reserved - len(self._background))
        else:
            free -= self.kept_for_background
        return self._memory.claims_that_fit(max(0, free))

    def __contains__(self, response_id: object) -> bool:
        """Whether the response runs here, or is about to."""
        return response_id in self.runs or response_id in self.claiming

    def claim(self, ids: Collection[UUID], *, background: bool) -> None:
        """These responses are about to run: each takes a slot."""
        self.claiming.update(ids)
        if background:
            self._background.update(ids)

    def end_claims(self, ids: Collection[UUID]) -> None:
        """The claims of these responses are over: they begin to run now, or they do not run."""
        for response_id in ids:
            self.claiming[response_id] -= 1
            if self.claiming[response_id] <= 0:
                del self.claiming[response_id]
                if response_id not in self.runs:
                    self._background.discard(response_id)

    def begin(self, run: Run) -> None:
        """The response runs now."""
        self.runs[run.claim.id] = run
        if run.claim.row.background:
            self._background.add(run.claim.id)

    def end(self, run: Run) -> None:
        """The response runs no more. Nothing, if this process runs it again already: after a
        failover that lost the claim of this run, the response was claimed once more."""
        if self.runs.get(run.claim.id) is run:
            del self.runs[run.claim.id]
            self._background.discard(run.claim.id)

    def count_claims(self, count: int) -> None:
        """So many claims begin: each needs memory soon."""
        self._memory.count_claims(count)

    def _kept_for_background(self, free: int) -> int:
        """How many of so many free slots. Slots for which there is no memory do not count."""
        if not self._is_shared:
            return 0
        usable = self._used + free
        return max(0, min(free, background_slots(usable) - len(self._background)))

    @property
    def _may_begin(self) -> bool:
        return not self.is_stopping and self._may_claim()

    @property
    def _used(self) -> int:
        return len(self.runs) + len(self.claiming)

    @property
    def _background_in_reserve(self) -> int:
        """Background responses above their slots. They take none of those that are reserved for
        foreground ones."""
        return max(0, len(self._background) - (self.slots - self._reserved))
