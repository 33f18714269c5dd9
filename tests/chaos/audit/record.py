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
    "commits_lost",
    "starved",
]
"""The kinds of faults.

Of a process: killed (kill -9), stopped (SIGTERM), frozen (SIGSTOP), disconnected (from a server),
exited (without a request). Of a server: restarted (stopped and started), crashed (killed and
started), hung (accepts connections and sends nothing), flushed (emptied), replies_lost (replies to
statements are lost), read_only (writes are refused), disk_full (nothing can be inserted),
commits_hang (reads are answered and commits are not), connections_lost (its open
connections are silent), commits_lost (a standby took its place that lacks the last commits). Of the
machine: starved (most of the time its processes wait for a CPU).
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

    what: Literal[
        "create", "get", "list", "search", "cancel", "delete", "input_items", "other_project"
    ]
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
    window: str = ""
    """Its completion window; empty: it named none."""
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


ObjectKind = Literal[
    "file",
    "batch",
    "vector store",
    "conversation",
    "webhook endpoint",
    "response",
    "kept response",
    "schedule",
]


@dataclass(slots=True)
class ObjectTrace:
    """What a client did with an object, and all that it got."""

    kind: ObjectKind
    name: str
    """Unique; the object has it, so that a list shows how often it was made."""
    retry: Literal["none", "key", "sdk"] = "none"
    """How its create was repeated: not at all, by the client with one `Idempotency-Key`, or by the
    official client after a lost reply."""
    creates: list[ClientRequest] = field(default_factory=list)
    requests: list[ClientRequest] = field(default_factory=list)
    listed: list[str] | None = None
    """The ids of the objects with its name in a list at the end; None: there is none."""

    @property
    def id(self) -> str | None:
        """Of the object that the first answered create returned."""
        return next((one.body["id"] for one in self.creates if one.status == 200), None)

    def requests_of(self, what: str) -> list[ClientRequest]:
        """The requests of this kind, in order."""
        return [request for request in self.requests if request.what == what]


@dataclass(slots=True)
class BatchTrace:
    """A batch, and what its files have at the end."""

    created: ObjectTrace
    lines: list[str]
    """Their custom_ids, which are also the names of their models."""
    status: str = ""
    """At the end; empty if it was not read."""
    output: list[str] = field(default_factory=list)
    """The custom_ids of its output file, in order; also those that are there twice."""
    errors: list[str] = field(default_factory=list)
    """The same of its error file."""


@dataclass(slots=True)
class StoredFile:
    """A file in a vector store."""

    id: str
    words: list[str]
    """Each is in its text once."""
    status: str = ""
    chunks: list[str] = field(default_factory=list)
    """At the end of its ingest. They do not overlap."""
    removed: float | None = None
    """When its removal was answered."""


@dataclass(slots=True)
class SearchTrace:
    """An answered search."""

    sent: float
    found: list[tuple[str, str]]
    """The file and the text of each result."""


@dataclass(slots=True)
class StoreTrace:
    """A vector store, its files and its searches."""

    created: ObjectTrace
    files: list[StoredFile] = field(default_factory=list)
    searches: list[SearchTrace] = field(default_factory=list)


@dataclass(slots=True)
class ProxiedTrace:
    """A request that is forwarded to the upstream."""

    marker: str
    """The model's name."""
    path: str
    request: ClientRequest
    counted: int = 0
    """How many requests of this model the usage has at the end."""


@dataclass(slots=True)
class KeptTrace:
    """A background response of a project with a short retention; a client polls it."""

    created: ObjectTrace
    retention: float
    """In seconds."""


@dataclass(slots=True)
class ChainTrace:
    """Background responses that were created in a row, each waiting for the one before."""

    links: list[ObjectTrace]
    statuses: list[str]
    """At the end, of each; empty: it was not read."""
    is_stopped: bool
    """A client has cancelled the first one."""


@dataclass(slots=True)
class ScheduleTrace:
    """A schedule with one slot, and what it has made."""

    created: ObjectTrace
    requested: list[ClientRequest] = field(default_factory=list)
    """Requests to run it at once, without a key. One that got no answer, or 503, was sent again."""
    runs: list[JSON] | None = None
    """At the end; None: they could not be read."""
    statuses: dict[str, str] = field(default_factory=dict)
    """Of the responses that it has made, at the end, by their ids."""


@dataclass(slots=True)
class SteerTrace:
    """Input that was sent to a running response."""

    text: str
    """Unique."""
    request: ClientRequest
    """The last one that sent it."""
    tries: int = 1
    """How often it was sent: again after a 503, without a key."""


@dataclass(slots=True)
class SteeredTrace:
    """A background response that is steered, and what continues it."""

    first: ObjectTrace
    steers: list[SteerTrace] = field(default_factory=list)
    shown: list[JSON] | None = None
    """Its steers at the end; None: they could not be read."""
    successors: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """By id: the status at the end, and the texts of the input."""


@dataclass(slots=True)
class ReceivedEvent:
    """A try of a webhook that its endpoint got."""

    id: str
    type: str
    object_id: str


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
    objects: list[ObjectTrace] = field(default_factory=list)
    batches: list[BatchTrace] = field(default_factory=list)
    stores: list[StoreTrace] = field(default_factory=list)
    proxied: list[ProxiedTrace] = field(default_factory=list)
    kept: list[KeptTrace] = field(default_factory=list)
    chains: list[ChainTrace] = field(default_factory=list)
    schedules: list[ScheduleTrace] = field(default_factory=list)
    steered: list[SteeredTrace] = field(default_factory=list)
    object_calls: list[UpstreamCall] = field(default_factory=list)
    """The requests that reached the upstream for batches, proxied and kept requests."""
    events: list[ReceivedEvent] = field(default_factory=list)
    """Of webhooks, that came during the run."""
    is_crowded: bool = False
    """There were far more responses than slots, so that their windows order them."""
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
