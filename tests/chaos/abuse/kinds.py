"""What an attack is, and the list of all."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.abuse.offender import Offender

Run = Callable[[Offender], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """One kind of attack."""

    name: str
    run: Run
    refused_with: frozenset[str]
    is_quick: bool
    """Whether it takes few seconds, so that CI runs it too."""


ATTACKS: list[AttackKind] = []
"""Complete when the modules of `tests.chaos.abuse.attacks` are imported."""
_LATER = frozenset({"429", "503"})
"""Answers that refuse any attack."""


def attack(name: str, *refused_with: str, quick: bool = False) -> Callable[[Run], Run]:
    """Adds the decorated function to the attacks."""

    def register(run: Run) -> Run:
        answers = frozenset(refused_with) | _LATER if refused_with else frozenset()
        ATTACKS.append(AttackKind(name, run, answers, quick))
        return run

    return register
