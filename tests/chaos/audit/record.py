"""What is known from outside about a deployment that was ill-treated: the material of the auditor.

All moments are `time.monotonic()` of the one process that made the clients, the fake upstream and the faults. Nothing here comes from
the product's code or its database.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

JSON = dict[str, Any]

FaultKind = Literal[
    "killed", "stopped", "frozen", "parted", "died", "away", "crashed", "hung", "flushed", "unclear"
]
"""killed: kill -9 · stopped: SIGTERM · frozen: SIGSTOP · parted: cut off from a server · died: ended by itself · away: a server that is
stopped and started · crashed: a server that is killed and started · hung: a server that accepts and says nothing · flushed: emptied ·
unclear: answers of statements get lost"""

FATAL_FAULTS = frozenset({"killed", "stopped", "frozen", "parted", "died"})
"""What can take a response from the process that runs it."""


@dataclass(slots=True)
class Fault:
    """Something that was done to a process or a server, or that a process did to itself."""

    what: FaultKind
    target: str
    """a process's name, or `postgres`, `redis`"""
    begin: float
    end: float | None = None
    """None: it was not undone (yet)"""

    def touches(self, begin: float, end: float, slack: float = 0) -> bool:
        """Whether any of it lies between these moments, or within `slack` seconds of them."""
        return self.begin <= end + slack and (self.end is None or self.end >= begin - slack)


@dataclass(slots=True)
class WorkerLifetime:
    """When a worker process that takes any response (none for the quarantine) was there."""

    name: str
    begin: float
    end: float | None = None


@dataclass(slots=True)
class Reading:
    """One SSE answer as one reader got it."""

    web: str
    """the process that sent it"""
    after: int
    """`starting_after`; -1 from the beginning"""
    opened: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    closed: float | None = None
    end: Literal["open", "clean", "cut", "left"] = "open"
    """clean: the server ended the body · cut: the connection broke · left: the reader went away"""

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.chunks)


@dataclass(slots=True)
class ClientRequest:
    """One request of a client that is answered whole."""

    what: Literal["create", "get", "cancel", "delete", "input_items", "stranger"]
    """stranger: a GET with the key of another project"""
    web: str
    sent: float
    answered: float | None = None
    status: int | None = None
    """None: the connection broke before there was an answer"""
    body: JSON = field(default_factory=dict)
    retry_after: str | None = None


@dataclass(slots=True)
class ResponseTrace:
    """All that clients did with one response, and all that they saw of it."""

    marker: str
    """unique; the model's name, so that the upstream's log has it too"""
    input_text: str
    """the input text"""
    background: bool
    create: ClientRequest
    turns: int = 1
    """upstream turns that its script needs"""
    previous: "ResponseTrace | None" = None
    id: str | None = None
    """None: the client never learnt it"""
    readings: list[Reading] = field(default_factory=list)
    requests: list[ClientRequest] = field(default_factory=list)

    def requests_of(self, what: str) -> list[ClientRequest]:
        """What was asked of this kind, in order."""
        return [asked for asked in self.requests if asked.what == what]


@dataclass(slots=True)
class UpstreamCall:
    """One request that reached the upstream."""

    marker: str
    started: float
    worker: str | None = None
    """the process that sent it; None: not known"""
    request_messages: str = ""
    """the messages it brought, as JSON"""
    sent_text: list[tuple[float, str]] = field(default_factory=list)
    """pieces of text that were sent back, and when"""
    closed: float | None = None
    """when the client closed it although the answer was not through"""
    finished: float | None = None
    """when the answer was through"""
    is_complete_turn: bool = False
    """The answer was a complete turn, not an error and not broken off by the upstream."""

    @property
    def ended(self) -> float | None:
        """When it was over, either way."""
        return self.finished if self.closed is None else self.closed


@dataclass(slots=True)
class ToolCall:
    """One call that reached a tool's server."""

    marker: str
    key: str
    """what makes two calls the same call"""
    started: float
    finished: float | None = None
    safe: bool = False
    """It declares itself read-only or idempotent."""


@dataclass(slots=True)
class RunRecord:
    """Everything of one run."""

    traces: list[ResponseTrace] = field(default_factory=list)
    upstream: list[UpstreamCall] = field(default_factory=list)
    tools: list[ToolCall] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    workers: list[WorkerLifetime] = field(default_factory=list)
    """Empty: not known; then the recovery time is measured, and asserted as if one had always been there."""
    ended: float = 0.0
    """when the run was over and nothing more was watched"""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The times of design §1, in seconds."""

    recovery: float = 20
    """I2: from a worker's death to the response running again or over"""
    cancel: float = 0.25
    """I10: how long after the answer to a cancel an upstream request may still start, with a live owner"""
    cancel_during_fault: float = 6
    """I10: the same without Redis"""
    rejournal: float = 5
    """after Postgres has crashed and is back: until what its journal has lost is stored again"""
    exit: float = 5
    """how long a worker that was declared dead may take to be gone"""
