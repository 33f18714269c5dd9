"""The plan of a round: what happens and when, all chosen by the seed before it begins."""

import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from tests.chaos.campaign.errands.plan import Errand, errands
from tests.support.mcp_servers import COUNTING_TOOLS

ClientKind = Literal[
    "streamed",
    "polled",
    "chained",
    "foreground stream",
    "foreground",
    "conversation",
    "socket",
    "compact",
]
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
    "lose redis",
    "restart postgres",
    "crash postgres",
    "read-only postgres",
    "fill postgres",
    "block-commits postgres",
    "injector",
    "kill machine",
    "double fault",
    "fail over",
    "fail over losing commits",
]
"""The last two only in rounds with a standby."""

T = TypeVar("T", bound=str)
_KINDS: dict[ClientKind, int] = {
    "streamed": 8,
    "polled": 5,
    "chained": 3,
    "foreground stream": 2,
    "foreground": 2,
    "conversation": 5,
    "socket": 2,
    "compact": 1,
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
    "lose redis": 3,
    "restart postgres": 4,
    "crash postgres": 2,
    "read-only postgres": 3,
    "fill postgres": 2,
    "block-commits postgres": 3,
    "injector": 5,
    "kill machine": 4,
    "double fault": 1,
}
_DEATHS: tuple[FaultAction, ...] = ("kill worker", "stop worker", "lose redis", "kill machine")
_FAILOVERS: tuple[FaultAction, ...] = ("fail over", "fail over losing commits")
CONVERSATIONS = 4
"""Conversations of a round; so several clients create in each, also at the same time."""


@dataclass(frozen=True, slots=True)
class Client:
    """One response and what its clients do. Times are seconds from the start of the round."""

    at: float
    kind: ClientKind
    words: int
    gap: float
    """Seconds between two words of the upstream."""
    upstream_fault: UpstreamFault
    upstream_fault_at: int
    """After this number of words."""
    disconnects: tuple[int, ...]
    """The reader disconnects after so many events, resumes elsewhere, and so on."""
    is_background: bool
    is_streamed: bool
    """Its create is streamed."""
    is_native: bool
    """Its upstream speaks the Responses API."""
    readers: tuple[tuple[int, ...], ...] = ()
    """Further readers of a background response, each with its disconnects."""
    read_pause: float = 0.0
    """Pause between two reads of a further, slow reader; 0: there is none."""
    cancel: float | None = None
    """Seconds after the create; None: no cancel."""
    delete: float | None = None
    """Seconds after the create; None: no delete."""
    tools: tuple[tuple[str, ...], ...] = ()
    """The counting tools that each turn before the last one calls."""
    tool_delay: float = 0.0
    """Seconds after the create until its tools answer."""
    compacts: bool = False
    """It has a long history, which is compacted before the turn."""
    conversation: int = 0
    """The number of the conversation in which it is created."""
    creates: int = 0
    """Creates of each lane of a WebSocket."""
    lanes: int = 1
    """Lanes of a WebSocket."""
    is_stored: bool = True
    """Responses of a WebSocket that are not stored can be continued only on it."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a round."""

    at: float
    action: FaultAction
    duration: float
    """Seconds until it is undone, or until the process is started again."""
    target_share: float
    """From 0 to 1: chooses one of the processes that run."""
    rate: float = 0.0
    """The rate of the injector."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The length of a round's parts, in seconds."""

    load: float
    """Clients start during this time."""
    freeze: float
    """The longest freeze; longer than the lease."""
    postgres_away: float
    """The longest outage of PostgreSQL."""
    redis_away: float
    """The longest outage of Redis."""
    machine_away: float
    """The longest time until a machine that died is back."""
    clients: int
    """Number of clients."""
    errands: int
    """Number of clients that make something else."""
    faults: int = 1
    """How often one to three faults are chosen."""
    failover_every: int = 0
    """Every so many rounds have a standby, to which they fail over; 0: none."""
    crowded_every: int = 0
    """Every so many rounds have few slots and many responses with windows; 0: none."""


SHORT = Scale(
    load=5.0,
    freeze=6.0,
    postgres_away=3.0,
    redis_away=2.0,
    machine_away=4.0,
    clients=50,
    errands=12,
)
"""For CI."""
DENSE = replace(
    SHORT, load=20.0, clients=400, errands=32, faults=2, failover_every=12, crowded_every=10
)
"""For `./dev chaos`: most of a short round is the wait for its last responses."""
DEFAULT = Scale(
    load=8.0,
    freeze=25.0,
    postgres_away=18.0,
    redis_away=8.0,
    machine_away=10.0,
    clients=120,
    errands=12,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a whole round."""

    seed: int
    clients: list[Client] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)
    is_crowded: bool = False
    """It needs a deployment of its own, whose workers have few slots."""

    @property
    def needs_own_deployment(self) -> bool:
        """Whether no other round can share its deployment."""
        return self.has_standby or self.is_crowded

    @property
    def has_standby(self) -> bool:
        """Whether it needs a deployment of its own, whose PostgreSQL has a standby."""
        return any(fault.action.startswith("fail over") for fault in self.faults)


def plan(seed: int, scale: Scale = SHORT) -> Plan:
    """The round of this seed."""
    if scale.crowded_every and seed % scale.crowded_every == scale.crowded_every // 2:
        return crowded(seed)
    rng = random.Random(f"round {seed}")  # must be repeatable, not secret
    clients = sorted(
        (_client(rng, scale) for _ in range(scale.clients)), key=lambda client: client.at
    )
    count = sum(rng.choice((1, 2, 3, 3)) for _ in range(scale.faults))
    actions = {_pick(rng, _FAULT_ACTIONS) for _ in range(count)}
    faults = sorted(
        (_planned_fault(rng, action, scale) for action in sorted(actions)),
        key=lambda fault: fault.at,
    )
    if scale.failover_every and seed % scale.failover_every == 0:
        action = rng.choice(_FAILOVERS)
        faults = [PlannedFault(rng.uniform(0.2, 0.8) * scale.load, action, 1.0, 0)]
    # Numbers of their own: the clients of a seed stay the same.
    planned = errands(random.Random(f"errands {seed}"), scale.errands, scale.load)
    return Plan(seed, clients, faults, planned)


def crowded(seed: int) -> Plan:
    """Two hundred responses with windows in five seconds, where few can run at a time."""
    rng = random.Random(f"crowded {seed}")  # must be repeatable, not secret
    clients = [
        replace(
            _client(rng, SHORT, number * 0.025),
            kind="polled",
            words=rng.randint(3, 8),
            gap=0.1,
            upstream_fault="none",
            is_background=True,
            is_streamed=False,
            cancel=None,
            delete=None,
            tools=(),
            compacts=False,
        )
        for number in range(200)
    ]
    action = rng.choice(_DEATHS)
    faults = [_planned_fault(rng, action, SHORT)]
    return Plan(seed, clients, faults, is_crowded=True)


def monkey(seed: int, minutes: float) -> Plan:
    """Three responses a second for so long, while PostgreSQL restarts every 5 to 40 seconds."""
    rng = random.Random(f"monkey {seed}")
    clients, faults, at = [], [], 0.0
    scale = Scale(
        load=60 * minutes,
        freeze=0,
        postgres_away=5,
        redis_away=0,
        machine_away=0,
        clients=0,
        errands=0,
    )
    while (at := at + rng.expovariate(3)) < scale.load:
        clients.append(_client(rng, scale, at))
    at = 2.0
    while at < scale.load:
        faults.append(PlannedFault(at, "restart postgres", rng.uniform(0, scale.postgres_away), 0))
        at += rng.uniform(5, 40)
    return Plan(seed, clients, faults)


def _client(rng: random.Random, scale: Scale, at: float | None = None) -> Client:
    kind = _pick(rng, _KINDS)
    words = rng.randint(3, 70)
    in_background = kind in ("streamed", "polled", "chained", "compact")
    is_alone = kind in ("conversation", "socket", "compact")
    client = Client(
        at=rng.uniform(0, scale.load) if at is None else at,
        kind=kind,
        words=words if kind not in ("conversation", "socket") else min(words, 30),
        gap=rng.choice((0.0, 0.03, 0.05, 0.1)),
        upstream_fault=_pick(rng, _UPSTREAM_FAULTS),
        upstream_fault_at=rng.randint(0, words),
        disconnects=_disconnects(rng),
        is_background=in_background or (kind == "conversation" and rng.random() < 0.7),
        is_streamed=kind in ("streamed", "foreground stream")
        or (kind == "conversation" and rng.random() < 0.5),
        is_native=rng.random() < 0.3,
        readers=tuple(_disconnects(rng) for _ in range(rng.choice((0, 0, 1, 2)))),
        read_pause=rng.choice((0, 0, 0, 0.05)),
        cancel=rng.uniform(0, 2) if rng.random() < 0.15 else None,
        delete=rng.uniform(0, 4) if rng.random() < 0.07 and not is_alone else None,
        compacts=rng.random() < 0.12 and not is_alone and kind != "chained",
    )
    match kind:
        case "conversation":
            client = replace(client, conversation=rng.randrange(CONVERSATIONS))
        case "socket":
            client = replace(client, **_socket(rng))
    return replace(client, **_tools(rng)) if rng.random() < 0.3 else client


def _socket(rng: random.Random) -> dict[str, Any]:
    return {
        "creates": rng.randint(1, 3),
        "lanes": rng.choice((1, 1, 2)),
        "is_stored": rng.random() < 0.5,
        "disconnects": tuple(rng.randint(1, 60) for _ in range(rng.choice((0, 0, 1, 2)))),
    }


def _tools(rng: random.Random) -> dict[str, Any]:
    turns = tuple(
        tuple(rng.choices(COUNTING_TOOLS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 3))
    )
    return {"tools": turns, "tool_delay": rng.choice((0.0, 0.5, rng.uniform(0, 5)))}


def _disconnects(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randint(1, 12) for _ in range(rng.choice((0, 0, 1, 3))))


def _planned_fault(rng: random.Random, action: FaultAction, scale: Scale) -> PlannedFault:
    limits = {
        "freeze": scale.freeze,
        "hang redis": scale.redis_away,
        "kill redis": scale.redis_away,
        "kill machine": scale.machine_away,
        "injector": scale.load,
    }
    longest = next((seconds for start, seconds in limits.items() if action.startswith(start)), 1.5)
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
