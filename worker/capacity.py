"""How many responses a worker runs at a time, and how many more it may claim."""

from collections.abc import Callable
from uuid import UUID

from models.redis.channels import BACKGROUND
from worker.memory_budget import MemoryBudget
from worker.run.runner import Run
from worker.slots import reserved_slots

_ENDING_SLOTS = 16
"""Responses above the slots that may be claimed only to be ended. Each takes milliseconds, and none
may wait for a run to end."""


class Capacity:
    """The slots of one process, what runs in them, and what is about to."""

    def __init__(
        self, slots: int, memory: MemoryBudget, may_claim: Callable[[], bool], *, is_shared: bool
    ) -> None:
        """`slots`: how many responses run at a time. `may_claim`: whether the process is sure of
        its lease. `is_shared`: some of the slots are reserved for foreground responses."""
        self.slots = slots
        self.runs: dict[UUID, Run] = {}
        self.claiming: set[UUID] = set()
        self.is_stopping = False
        self._reserved = reserved_slots(slots) if is_shared else 0
        self._memory = memory
        self._may_claim = may_claim

    @property
    def free(self) -> int:
        """Free slots; none while the process stops, is not sure of its lease, or has no memory for
        another response."""
        return self._memory.claims_that_fit(self._free_of(self.slots))

    @property
    def free_for_background(self) -> int:
        """Free slots without those reserved for foreground responses."""
        return max(0, self.free - self._reserved)

    @property
    def free_for_endings(self) -> int:
        """How many responses may be claimed that are only to be ended."""
        return self._free_of(self.slots + _ENDING_SLOTS)

    def free_for(self, queue: str) -> int:
        """Free slots for the responses of this queue."""
        return self.free_for_background if queue == BACKGROUND else self.free

    def __contains__(self, response_id: object) -> bool:
        """Whether the response runs here, or is about to."""
        return response_id in self.runs or response_id in self.claiming

    def count_claims(self, count: int) -> None:
        """So many claims begin: each needs memory soon."""
        self._memory.count_claims(count)

    def _free_of(self, slots: int) -> int:
        if self.is_stopping or not self._may_claim():
            return 0
        return max(0, slots - len(self.runs) - len(self.claiming))
