"""Slots of which one project cannot keep another one waiting (ADR 0069)."""

from dataclasses import dataclass

_FRACTION = 10
_LEAST = 2
"""With two projects that take all they can get, a third one finds a slot."""


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """Slots for anybody, and a few more, each for a project that has none here.

    What runs in a slot of the reserve counts as everything else does. So a slot that becomes free
    fills the reserve first, and only then goes to somebody who has others.
    """

    count: int
    """Slots for anybody: those that an operator has set."""
    reserve: int
    """Slots above them."""

    @classmethod
    def beside(cls, count: int) -> "ReservedSlots":
        """So many slots, and a tenth more as the reserve, two at least."""
        return cls(count, max(_LEAST, count // _FRACTION))

    @property
    def most(self) -> int:
        """All of them."""
        return self.count + self.reserve

    def free(self, used: int) -> int:
        """How many of the slots are free for anybody, while so many are used."""
        return max(0, self.count - used)

    def free_for_newcomers(self, used: int) -> int:
        """How many are free for projects that have none, one for each."""
        return max(0, self.most - used)
