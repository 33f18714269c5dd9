"""What a round does and when: all of it chosen by the seed before it begins."""

import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from tests.support.mcp_servers import COUNTING_TOOLS

ClientKind = Literal["streamed", "polled", "chained", "foreground stream", "foreground"]
UpstreamFault = Literal["none", "reset", "drop", "refused first", "hang"]
FaultAction = Literal[
    "kill worker",
    "stop worker",
    "freeze worker",
    "kill quarantine",
    "kill web",
    "stop web",
    "freeze web",
    "kill redis",
    "hang redis",
    "flush redis",
    "restart postgres",
    "crash postgres",
    "injector",
    "double fault",
]

T = TypeVar("T", bound=str)
_KINDS: dict[ClientKind, int] = {
    "streamed": 8,
    "polled": 5,
    "chained": 3,
    "foreground stream": 2,
    "foreground": 2,
}
_UPSTREAM_FAULTS: dict[UpstreamFault, int] = {
    "none": 30,
    "reset": 2,
    "drop": 1,
    "refused first": 2,
    "hang": 1,
}
_FAULT_ACTIONS: dict[FaultAction, int] = {
    "kill worker": 6,
    "stop worker": 3,
    "freeze worker": 4,
    "kill quarantine": 1,
    "kill web": 3,
    "stop web": 2,
    "freeze web": 2,
    "kill redis": 3,
    "hang redis": 3,
    "flush redis": 3,
    "restart postgres": 4,
    "crash postgres": 2,
    "injector": 5,
    "double fault": 1,
}


@dataclass(frozen=True, slots=True)
class Client:
    """One response, and what its clients do. Moments are seconds from the round's begin."""

    at: float
    kind: ClientKind
    words: int
    gap: float
    """seconds between two words of the upstream"""
    upstream_fault: UpstreamFault
    upstream_fault_at: int
    """after this many words"""
    disconnects: tuple[int, ...]
    """the reader goes away after so many events, resumes elsewhere, and so on"""
    readers: tuple[tuple[int, ...], ...] = ()
    """further readers of a background response, each with its leaves"""
    read_pause: float = 0.0
    """pause between two reads of one more reader; 0: there is none"""
    cancel: float | None = None
    """seconds after the create"""
    delete: float | None = None
    tools: tuple[tuple[str, ...], ...] = ()
    """the counting tools that each turn before the last one calls"""
    tool_delay: float = 0.0
    """seconds after the create until its tools answer"""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault."""

    at: float
    action: FaultAction
    duration: float
    """seconds until it is undone, or until the process is started again"""
    target_share: float
    """0 … 1: which of those that are there"""
    rate: float = 0.0
    """the injector's"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How long things last, in seconds."""

    load: float
    """clients come for so long"""
    freeze: float
    """at most; beyond the lease"""
    postgres_away: float
    redis_away: float
    clients: int


SHORT = Scale(load=3.0, freeze=6.0, postgres_away=3.0, redis_away=2.0, clients=24)
DEFAULT = Scale(load=8.0, freeze=25.0, postgres_away=18.0, redis_away=8.0, clients=40)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole round."""

    seed: int
    clients: list[Client] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)


def plan(seed: int, scale: Scale = SHORT) -> Plan:
    """The round of this seed."""
    chance = random.Random(f"round {seed}")  # must be repeatable, not secret
    clients = sorted(
        (_client(chance, scale) for _ in range(scale.clients)), key=lambda client: client.at
    )
    deeds = {_pick(chance, _FAULT_ACTIONS) for _ in range(chance.choice((1, 2, 3, 3)))}
    strikes = sorted(
        (_planned_fault(chance, deed, scale) for deed in sorted(deeds)),
        key=lambda strike: strike.at,
    )
    return Plan(seed, clients, strikes)


def with_tools(plain: Plan) -> Plan:
    """The same round, but two thirds of its responses call tools first."""
    chance = random.Random(f"tools {plain.seed}")
    clients = [
        replace(client, **_tools(chance)) if chance.random() < 2 / 3 else client
        for client in plain.clients
    ]
    return replace(plain, clients=clients)


def monkey(seed: int, minutes: float) -> Plan:
    """Three responses a second for so long, while Postgres is restarted every 5 to 40 seconds."""
    chance = random.Random(f"monkey {seed}")
    clients, strikes, at = [], [], 0.0
    scale = Scale(load=60 * minutes, freeze=0, postgres_away=5, redis_away=0, clients=0)
    while (at := at + chance.expovariate(3)) < scale.load:
        clients.append(_client(chance, scale, at))
    at = 2.0
    while at < scale.load:
        strikes.append(
            PlannedFault(at, "restart postgres", chance.uniform(0, scale.postgres_away), 0)
        )
        at += chance.uniform(5, 40)
    return Plan(seed, clients, strikes)


def _client(rng: random.Random, scale: Scale, at: float | None = None) -> Client:
    kind = _pick(rng, _KINDS)
    words = rng.randint(3, 70)
    return Client(
        at=rng.uniform(0, scale.load) if at is None else at,
        kind=kind,
        words=words,
        gap=rng.choice((0.0, 0.03, 0.05, 0.1)),
        upstream_fault=_pick(rng, _UPSTREAM_FAULTS),
        upstream_fault_at=rng.randint(0, words),
        disconnects=_disconnects(rng),
        readers=tuple(_disconnects(rng) for _ in range(rng.choice((0, 0, 1, 2)))),
        read_pause=rng.choice((0, 0, 0, 0.05)),
        cancel=rng.uniform(0, 2) if rng.random() < 0.15 else None,
        delete=rng.uniform(0, 4) if rng.random() < 0.07 else None,
    )


def _tools(rng: random.Random) -> dict[str, Any]:
    turns = tuple(
        tuple(rng.choices(COUNTING_TOOLS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 3))
    )
    return {"tools": turns, "tool_delay": rng.choice((0.0, 0.5, rng.uniform(0, 5)))}


def _disconnects(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randint(1, 12) for _ in range(rng.choice((0, 0, 1, 3))))


def _planned_fault(rng: random.Random, action: FaultAction, scale: Scale) -> PlannedFault:
    most = {
        "freeze": scale.freeze,
        "hang redis": scale.redis_away,
        "kill redis": scale.redis_away,
        "injector": scale.load,
    }
    longest = next((seconds for word, seconds in most.items() if action.startswith(word)), 1.5)
    if action.endswith("postgres"):
        longest = scale.postgres_away
    return PlannedFault(
        at=rng.uniform(0.1, 0.9) * scale.load,
        action=action,
        duration=rng.uniform(0.3 * longest, longest),
        target_share=rng.random(),
        rate=rng.uniform(0.05, 0.1),
    )


def _pick(rng: random.Random, weights: dict[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]
