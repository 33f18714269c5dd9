"""The material of the auditor: what is known from outside about a deployment with faults.

All times are `time.monotonic()` of the process that runs the clients, the fake upstream and the
faults. None of it comes from the product's code or database.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

JSON = dict[str, Any]

FaultKind = Literal[
    "killed",
    "stopped",
    "frozen",
    "disconnected",
    "exited",
    "restarted",
    "crashed",
    "hung",
    "flushed",
    "replies_lost",
    "read_only",
    "disk_full",
    "commits_hang",
    "connections_lost",
    "starved",
]
"""The kinds of faults.

Of a process: killed (kill -9), stopped (SIGTERM), frozen (SIGSTOP), disconnected (from a server),
exited (without a request). Of a server: restarted (stopped and started), crashed (killed and
started), hung (accepts connections and sends nothing), flushed (emptied), replies_lost (replies to
statements are lost), read_only (writes are refused), disk_full (nothing can be inserted),
commits_hang (reads are answered and commits are not), connections_lost (its open
connections are silent). Of the machine: starved (most of the time its processes wait for a CPU).
"""

ReadingEnd = Literal["open", "clean", "cut", "left"]

FATAL_FAULTS = frozenset({"killed", "stopped", "frozen", "disconnected", "exited"})
"""Faults that can end a response's run in this process."""


@dataclass(slots=True)
class Fault:
    """A fault of a process or a server."""

    what: FaultKind
    target: str
    """A process's name, `postgres`, `redis`, `upstream` or `machine`."""
    begin: float
    end: float | None = None
    """None if it was not undone (yet)."""

    def touches(self, begin: float, end: float, slack: float = 0) -> bool:
        """Returns whether it touches the time from `begin` to `end`, give or take `slack` s."""
        return self.begin <= end + slack and (self.end is None or self.end >= begin - slack)


@dataclass(slots=True)
class WorkerLifetime:
    """When a worker that claims any response was running; not recorded for the quarantine."""

    name: str
    begin: float
    end: float | None = None


@dataclass(slots=True)
class Reading:
    """One SSE answer, or one response's frames of a WebSocket, as one reader got it."""

    web: str
    """The web process that sent it."""
    after: int
    """`starting_after`; -1 for the beginning."""
    opened: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    closed: float | None = None
    end: ReadingEnd = "open"
    """clean: the server ended the body, cut: the connection broke, left: the reader closed it."""
    is_socket: bool = False
    """It came over a WebSocket: each chunk is one text frame, the JSON of one event."""

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.chunks)


@dataclass(slots=True)
class ClientRequest:
    """One request of a client whose answer is read whole."""

    what: Literal["create", "get", "cancel", "delete", "input_items", "other_project"]
    """other_project: a GET with the key of another project. create: also a POST of a compaction."""
    web: str
    sent: float
    answered: float | None = None
    status: int | None = None
    """None if the connection broke before an answer."""
    body: JSON = field(default_factory=dict)
    retry_after: str | None = None


@dataclass(slots=True)
class ConversationTrace:
    """A conversation: what was put into it when it was created, and its items at the end."""

    id: str
    texts: list[str]
    """The texts of the user messages with which it was created."""
    items: list[JSON] | None = None
    """Its items after the end of all its responses, in order; None if they could not be read."""
    other_project: ClientRequest | None = None
    """A GET of its items with the key of another project."""


@dataclass(slots=True)
class ResponseTrace:
    """All that clients did with one response, and all that they got."""

    marker: str
    """Unique; it is the model's name, so the upstream's log has it too."""
    input_text: str
    """The text of the last user message of its input."""
    background: bool
    create: ClientRequest
    turns: int = 1
    """Number of upstream turns that its script needs."""
    previous: "ResponseTrace | None" = None
    conversation: ConversationTrace | None = None
    history: list[JSON] = field(default_factory=list)
    """The items of its input before the last user message."""
    stored: bool = True
    """False: it was created with `store: false`, and no GET shows it."""
    kind: Literal["plain", "compacting", "compaction"] = "plain"
    """compacting: it compacts its history before the turn. compaction: a POST /responses/compact,
    which has no id and whose answer is its only output."""
    compacted: "ResponseTrace | None" = None
    """The compaction whose output is its `history`."""
    id: str | None = None
    """None if the client never got it."""
    readings: list[Reading] = field(default_factory=list)
    requests: list[ClientRequest] = field(default_factory=list)

    def requests_of(self, what: str) -> list[ClientRequest]:
        """The requests of this kind, in order."""
        return [request for request in self.requests if request.what == what]


@dataclass(slots=True)
class UpstreamCall:
    """One request that reached the upstream."""

    marker: str
    started: float
    worker: str | None = None
    """The process that sent it; None if unknown."""
    request_messages: str = ""
    """The messages of the request, as JSON."""
    sent_text: list[tuple[float, str]] = field(default_factory=list)
    """Pieces of text that were sent back, with their times."""
    closed: float | None = None
    """When the client closed it before the answer was complete."""
    finished: float | None = None
    """When the answer was complete."""
    is_complete_turn: bool = False
    """Whether the answer was a complete turn, without an error."""
    request_texts: list[str] = field(default_factory=list)
    """The texts of its messages of users and of the model, in order."""

    @property
    def ended(self) -> float | None:
        """When it ended, either way."""
        return self.finished if self.closed is None else self.closed


@dataclass(slots=True)
class ToolCall:
    """One call that reached a tool's server."""

    marker: str
    key: str
    """Two calls with the same key are the same call."""
    started: float
    finished: float | None = None
    safe: bool = False
    """Whether the tool declares itself read-only or idempotent."""


@dataclass(slots=True)
class RunRecord:
    """The record of one run."""

    traces: list[ResponseTrace] = field(default_factory=list)
    upstream: list[UpstreamCall] = field(default_factory=list)
    tools: list[ToolCall] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    workers: list[WorkerLifetime] = field(default_factory=list)
    """Empty if unknown: recovery is then checked as if a worker had always been there."""
    conversations: list[ConversationTrace] = field(default_factory=list)
    ended: float = 0.0
    """When the run was over."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The promised times of docs/guarantees.md, in seconds."""

    recovery: float = 6
    """I2: from the `kill -9` of a worker until its response runs again or has ended; and from that
    of a web process until its foreground response has ended."""
    recovery_by_lease: float = 20
    """I2: the same where the worker's lease has to decide, because it was frozen or not alone."""
    leave: float = 6
    """I10: how long after a foreground client has left an upstream request may start."""
    cancel: float = 0.25
    """I10: how long after a cancel's answer an upstream request may start, with a live owner."""
    cancel_during_fault: float = 6
    """I10: the same without Redis."""
    rejournal: float = 5
    """How long after a crash of PostgreSQL the workers may need to write their journal again."""
    silence: float = 5.5
    """How long an upstream must be silent before its turn is given up and repeated."""
    exit: float = 5
    """How long a worker that was declared dead may need to exit."""
