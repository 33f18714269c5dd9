"""Which errands a round has: all chosen by its seed before it begins."""

import random
from dataclasses import dataclass
from typing import Literal

ErrandKind = Literal[
    "file",
    "batch",
    "store",
    "conversation",
    "endpoint",
    "response",
    "proxied",
    "kept",
    "chain",
    "schedule",
    "steered",
]
Retry = Literal["none", "key", "sdk"]

_KINDS: dict[ErrandKind, int] = {
    "file": 2,
    "batch": 4,
    "store": 3,
    "conversation": 2,
    "endpoint": 1,
    "response": 4,
    "proxied": 3,
    "kept": 2,
    "chain": 4,
    "schedule": 3,
    "steered": 4,
}
_EARLY = 0.3
"""Share of the load in which those begin that take long."""


@dataclass(frozen=True, slots=True)
class Errand:
    """One object and what its client does with it. Times are seconds."""

    at: float
    """From the start of the round."""
    kind: ErrandKind
    retry: Retry
    """How its create is repeated: not at all, by the client with one `Idempotency-Key`, or by the
    official client."""
    loses_reply: bool
    """The answer to its first create does not arrive."""
    size: int
    """Lines, files, words or requests."""
    delete: float | None
    """From the create; a batch is cancelled. None: it stays, or is deleted at its end."""
    is_deleted_at_end: bool


def errands(rng: random.Random, count: int, load: float) -> list[Errand]:
    """So many errands, of each kind at least one if there are enough, in the order of their
    beginnings. `load`: the seconds in which they begin."""
    kinds = list(_KINDS)
    rest = rng.choices(kinds, list(_KINDS.values()), k=max(0, count - len(kinds)))
    chosen = [_errand(rng, kind, load) for kind in [*kinds[:count], *rest]]
    return sorted(chosen, key=lambda errand: errand.at)


def _errand(rng: random.Random, kind: ErrandKind, load: float) -> Errand:
    retries: tuple[Retry, ...] = ("none", "key", "sdk")
    retry = rng.choice(retries)
    share = _EARLY if kind in ("batch", "store", "kept", "chain", "schedule") else 1.0
    return Errand(
        at=rng.uniform(0, load * share),
        kind=kind,
        retry=retry,
        loses_reply=retry == "sdk" or rng.random() < 0.5,
        size=rng.randint(2, 6),
        delete=rng.uniform(0, 3) if rng.random() < 0.25 else None,
        is_deleted_at_end=rng.random() < 0.5,
    )
