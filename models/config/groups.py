"""The groups of settings: each class is one table of `backburner.toml`, such as `[limits]`.

The text below each setting is its meaning in `docs/settings.md`.
"""

import re
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from models.config.values import (
    HTTP_ADDRESS,
    Bytes,
    Characters,
    Duration,
    Group,
    TextList,
    Tokens,
    check_destinations,
)
from models.process_memory import default_budget


class LeaseSettings(Group):
    """How processes show that they are alive, and when work of dead ones is claimed by others."""

    duration: Duration = timedelta(seconds=10)
    """How long a lease is valid after a heartbeat; at least three times `lease.beat`."""
    beat: Duration = timedelta(milliseconds=500)
    """Time between two heartbeats, which renew the lease. A process whose connection has ended is
    declared dead when three heartbeats, and at least 1.5 s, are missing."""
    caution: Duration = timedelta(seconds=6)
    """A worker starts no new turn when the last renewal is older than this."""
    observe: Duration = timedelta(seconds=5)
    """A sweep reaps a process after it has seen the same expired lease for this long."""
    sweep: Duration = timedelta(seconds=2)
    """Time between two sweeps of a worker, and between two comparisons of what it runs with what
    the database says it owns."""
    ring_interval: Duration = timedelta(seconds=5)
    """A response whose worker has crashed is enqueued again after this time, then after twice this
    time, and so on, if its queue is short. One that waits for a slot is looked for after this time:
    its message may be lost."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.duration < 3 * self.beat:
            raise ValueError("lease.duration must be at least three times lease.beat")
        if not self.beat < self.caution < self.duration:
            raise ValueError("lease.caution must lie between lease.beat and lease.duration")
        return self


class LineSettings(Group):
    """How long responses of lower service tiers wait behind others (ADR 0041)."""

    flex_wait: Duration = timedelta(minutes=10)
    """A response with `service_tier: flex` waits for a slot behind all others. After this time it
    counts as `default`."""
    batch_wait: Duration = timedelta(hours=1)
    """The same for the responses of batches, which wait behind `flex`."""


class LimitSettings(Group):
    """Limits that end responses which are stuck or too large."""

    first_token: Duration = timedelta(seconds=600)
    """Longest wait for the first token of a turn."""
    token_gap: Duration = timedelta(seconds=300)
    """Longest pause between two tokens of a turn."""
    turn: Duration = timedelta(hours=1)
    """Longest duration of one turn."""
    wall_clock: Duration = timedelta(hours=24)
    """Longest time from the first claim of a response to its end."""
    queue_wait: Duration = timedelta(hours=24)
    """Longest time that a response waits for its first claim."""
    turns: int = 128
    """Most turns of one response."""
    body: Bytes = 64 * 1024 * 1024
    """Largest request body."""
    text: Bytes = 4 * 1024 * 1024
    """The same without inline files: instructions, tools, schemas, metadata and text."""
    history: Bytes = 72 * 1024 * 1024
    """Largest history of a response: everything that it continues, and its input. Each JSON value
    counts 32 bytes besides its text. A worker needs about five times as much memory for it."""
    values: int = Field(default=800_000, ge=1000)
    """Most JSON values in a request body. A list or object counts as four."""
    output: Bytes = 16 * 1024 * 1024
    """Most text that one turn may produce. A worker needs about 20 times as much memory when such a
    turn ends."""
    response_output: Bytes = 32 * 1024 * 1024
    """Most output of all turns of a response, with the results of its tools. It is counted before
    each turn and each tool call, as `limits.history` counts."""


class CacheSettings(Group):
    """The answer cache: stored answers for requests that ask for it (docs/cache.md)."""

    ttl: Duration = timedelta(hours=1)
    """How long an answer is kept for `cache: true`, in whole seconds."""
    longest_ttl: Duration = timedelta(days=1)
    """The longest time that a request may ask for."""
    value_bytes: Bytes = 1024 * 1024
    """Largest answer that is stored, after sealing and base64."""
    project_bytes: Bytes = 32 * 1024 * 1024
    """Most bytes of one project's cached answers; those that would expire first make room."""
    project_answers: int = Field(default=10_000, ge=1)
    """Most cached answers of one project."""
    patience: Duration = timedelta(milliseconds=250)
    """Longest wait for Redis; a longer wait counts as a miss, and for two seconds the cache is not
    used."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not timedelta(seconds=1) <= self.ttl <= self.longest_ttl:
            raise ValueError("cache.ttl must lie between one second and cache.longest_ttl")
        return self


class QuotaSettings(Group):
    """What one project may use, unless it has quotas of its own (docs/limits.md). Unset or 0: no
    limit."""

    requests_per_minute: int | None = Field(default=None, ge=0)
    """Requests that create something, in a minute."""
    tokens_per_minute: Tokens | None = Field(default=None, ge=0)
    """Input and output tokens in a minute: estimated with the request, corrected at its end."""
    running: int | None = Field(default=None, ge=0)
    """Responses that have not ended; a worker may begin each of them at once."""
    queued: int | None = Field(default=None, ge=0)
    """Responses that wait for their first claim by a worker."""
    open_streams: int | None = Field(default=None, ge=0)
    """Streams that are being sent, and requests that are forwarded."""
    open_sockets: int | None = Field(default=None, ge=0)
    """Open WebSockets."""
    stored_bytes: Bytes | None = Field(default=None, ge=0)
    """Bytes of stored responses and conversations, as they are in the database."""
    conversations: int | None = Field(default=None, ge=0)
    """Stored conversations."""
    files: int | None = Field(default=None, ge=0)
    """Stored files."""
    file_bytes: Bytes | None = Field(default=None, ge=0)
    """Bytes of stored files."""
    batches: int | None = Field(default=200, ge=0)
    """Batches that have not ended, or failed within the last hour."""
    vector_stores: int | None = Field(default=None, ge=0)
    """Vector stores that have not expired."""
    vector_bytes: Bytes | None = Field(default=None, ge=0)
    """Bytes of the texts and embeddings in vector stores."""
    tokens_per_day: Tokens | None = Field(default=None, ge=0)
    """Input and output tokens of one day in UTC."""
    tokens_per_month: Tokens | None = Field(default=None, ge=0)
    """Input and output tokens of one calendar month in UTC."""


class WorkerSettings(Group):
    """The workers."""

    grace: Duration = timedelta(seconds=2)
    """How long running responses may still end after SIGTERM before they are handed over. Of more
    than 50 the last are handed over then, the first up to half of this time earlier."""
    call_grace: Duration = timedelta(seconds=10)
    """The same for a response with a running tool call that must not run twice: if it is cut off,
    its outcome is unknown. Also the longest time that such a call delays a stop."""
    flush_interval: Duration = timedelta(seconds=1)
    """Time between two flushes of a response's events to the event log."""
    flush_bytes: Bytes = 64 * 1024
    """A response's events are flushed earlier when they reach this size."""
    journal_gap: Duration = timedelta(milliseconds=5)
    """Shortest time between two batches that are written to the journal. While many responses
    stream, up to five times as long."""
    tail_bytes: Bytes = 1024 * 1024
    """Most unflushed events of one response; above it, its upstream is not read."""
    pool_size: int = Field(default=8, ge=1)
    """Database connections of one worker. The responses of one project use two thirds of them at
    most."""
    memory: Annotated[Bytes, Field(ge=128 * 1024 * 1024)] | None = None
    """Most memory of one worker process; it claims nothing when three quarters are used, and hands
    responses over before all is. Unset: 80 % of the container's limit; without a container half of
    the machine's memory."""
    probation: Duration = timedelta(seconds=10)
    """How long a response in quarantine must run without a crash before others may take its place
    in its group."""
    purge_interval: Duration = timedelta(seconds=30)
    """Time between two purges of responses whose retention has ended."""
    usage_entries: Duration = timedelta(days=7)
    """How long usage can be read by the minute and the hour; by the day it is kept for ever."""

    @property
    def memory_budget(self) -> int | None:
        """Bytes; None: nothing is known, and nothing is limited."""
        return default_budget() if self.memory is None else self.memory

    @property
    def longest_grace(self) -> timedelta:
        """After this time a stopping worker hands over everything."""
        return max(self.grace, self.call_grace)


class ToolSettings(Group):
    """Server tools: the tools that this server runs for the model."""

    time: Duration = timedelta(seconds=120)
    """Longest duration of one tool call."""
    answer: Bytes = 256 * 1024
    """Longest text in the result of one call; the rest is cut off, with a note for the model."""
    images: Bytes = 8 * 1024 * 1024
    """Most images in the result of one call, as base64; others are left out, with a note."""
    parallel: int = 16
    """Tool calls of one turn that run at the same time."""
    calls: int = 128
    """Tool calls of one turn that are run; the model gets an error for each further call."""


class McpSettings(Group):
    """MCP servers. The limits of a call and of its result are in `tools`."""

    connect: Duration = timedelta(seconds=15)
    """Longest time to open a session, both transports included."""
    farewell: Duration = timedelta(seconds=1)
    """Longest time to close a session."""
    servers: int = Field(default=16, ge=1)
    """Most MCP servers of one request."""
    answer_bytes: Bytes = 8 * 1024 * 1024
    """Largest reply of an MCP server; it is read into memory before it is shortened."""
    answer_values: int = Field(default=32_000, ge=1000)
    """Most JSON values in such a reply. They are counted in its bytes, before it is parsed."""
    blocks: int = Field(default=1000, ge=1)
    """Most content blocks in the result of one call."""
    tools: int = 1024
    """Most tools that one server may list."""
    tools_in_all: int = Field(default=2048, ge=1)
    """Most tools that all servers of one response may list together."""
    list_bytes: Bytes = 2 * 1024 * 1024
    """Largest list of one server's tools, as JSON."""
    list_bytes_in_all: Bytes = 4 * 1024 * 1024
    """Largest lists of all servers of one response together, as JSON."""
    redirects: int = 3
    """Redirects that one request follows, only within the server's own origin."""
    require_approval: Literal["always", "never"] = "always"
    """What is meant where a tool gives no `require_approval`: whether the client approves each
    call. OpenAI has `always`."""


class WebSearchSettings(Group):
    """The search provider of the `web_search` tool. Without a provider requests with the tool are
    refused, unless the model's upstream runs it."""

    provider: Literal["tavily", "brave", "searxng"] | None = None
    """The provider's API."""
    base_url: str = ""
    """The address of the API; required for SearXNG. It may be on a private network."""
    api_key: SecretStr = SecretStr("")
    """The key; required for Tavily and Brave."""
    timeout: Duration = timedelta(seconds=20)
    """Longest duration of one search."""
    answer_bytes: Bytes = 4 * 1024 * 1024
    """Largest reply; it is read into memory before it is shortened."""
    omit: bool = False
    """Without a provider: a `web_search` with `external_web_access`, as Codex sends it with every
    request, is left out of the request, and a header of the response says so. `up` switches this
    on."""

    @model_validator(mode="after")
    def _check_provider(self) -> Self:
        if self.base_url and not re.fullmatch(HTTP_ADDRESS, self.base_url):
            raise ValueError(
                "web_search.base_url must be an http:// or https:// address "
                "without user name, query or fragment"
            )
        if self.provider == "searxng" and not self.base_url:
            raise ValueError("web_search.base_url must name the SearXNG instance")
        if self.provider in ("tavily", "brave") and not self.api_key.get_secret_value():
            raise ValueError(f"web_search.api_key must be set for {self.provider}")
        return self


class CompactionSettings(Group):
    """Compaction: a summary that replaces a long history (docs/state.md)."""

    threshold: Annotated[Tokens, Field(ge=1000)] = 100_000
    """Context size from which a response with `context_management` is compacted, if the client
    gives no threshold."""
    user_messages: Annotated[Characters, Field(ge=0)] = 80_000
    """Text of user messages that is kept unchanged, the newest first; about 20,000 tokens."""
    calls: int = Field(default=64, ge=1)
    """Model calls of one compaction; a history that is too long for the model is summarised in
    parts."""


class WebhookSettings(Group):
    """The delivery of webhooks."""

    timeout: Duration = timedelta(seconds=15)
    """Longest time until an endpoint answers."""
    retention: Duration = timedelta(days=30)
    """How long deliveries are listed and can be sent again."""
    endpoints: int = Field(default=20, ge=1)
    """Most endpoints of a project."""


class FileSettings(Group):
    """Files (docs/files.md)."""

    folder: Path | None = None
    """The folder that holds the content of files, the same for all web processes and workers. `up`
    uses `files` in its data folder. Unset, and no `s3.bucket`: this server stores no files."""
    bytes: Bytes = Field(default=512 * 1024 * 1024, ge=1)
    """Largest file."""
    batch_bytes: Bytes = Field(default=200 * 1024 * 1024, ge=1)
    """Largest file of purpose `batch`."""
    part_bytes: Bytes = Field(default=64 * 1024 * 1024, ge=1)
    """Largest part of an upload; OpenAI has the same limit."""
    per_request: int = Field(default=1000, ge=1)
    """Most stored files that one request names."""
    upload_time: Duration = timedelta(hours=1)
    """Longest time for one upload. What is not complete then is deleted."""
    batch_retention: Duration | None = timedelta(days=30)
    """How long files of purpose `batch` and `batch_output` are kept, unless the client has asked
    for less. Others are kept until they expire or are deleted."""


class BatchSettings(Group):
    """Batches (docs/batches.md)."""

    requests: int = Field(default=50_000, ge=1)
    """Most requests of a batch."""
    line: Bytes = Field(default=8 * 1024 * 1024, ge=1000)
    """Longest line of an input file."""
    open: int = Field(default=1000, ge=1)
    """Most requests of one batch that wait or run, or whose results are not written yet. The others
    stay in the input file, so that no queue holds all of a large batch."""
    longest_window: Duration = timedelta(days=7)
    """Longest `completion_window`."""
    retention: Duration = timedelta(days=30)
    """How long a batch is listed after its end. Its files have their own retention."""


class EgressSettings(Group):
    """What this server fetches for clients (files by URL, MCP servers), and what it lets upstreams
    fetch for them."""

    allow: TextList = ()
    """Networks (CIDR) and host names outside the public internet that may be reached, on any port;
    separated by commas. `*.example.com` are all names below `example.com`."""
    public: bool = True
    """Whether the public internet may be reached. If not, only what `egress.allow` lists."""
    resolve: bool = True
    """Looks up the host names in addresses that only the upstream fetches (images), and refuses
    those that lead to an address that may not be reached."""
    resolve_time: Duration = timedelta(seconds=2)
    """Longest time for these look-ups of one request. A name without an answer is not refused."""
    timeout: Duration = timedelta(seconds=60)
    """Longest time for all files of one response together, also stored ones."""
    file_bytes: Bytes = 32 * 1024 * 1024
    """Most bytes of all files of one response, before base64, also of stored ones."""
    memory: Bytes = 256 * 1024 * 1024
    """Most memory of a worker for such files of all responses together. What is not being fetched
    or sent is dropped when there is no room, and fetched again for a further turn."""
    redirects: int = 5
    """Redirects that one download follows."""

    @field_validator("allow")
    @classmethod
    def _check_entries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_destinations(value)


class TraceSettings(Group):
    """Traces by OpenTelemetry (docs/operations.md). The standard variables `OTEL_*` configure where
    they are sent."""

    enabled: bool = False
    """Records and sends traces. Needs the package's extra `otel`."""
    content: bool = False
    """Spans also have what is sent to models and tools, and what these answer."""
    propagate: bool = False
    """Requests to upstreams have the header `traceparent`, so that their spans join the trace."""

    @field_validator("enabled")
    @classmethod
    def _check_extra(cls, value: bool) -> bool:
        if value and not _has_exporter():
            raise ValueError("needs a package that is missing: pip install 'backburner[otel]'")
        return value


def _has_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class AuditSettings(Group):
    """The audit log ([operations.md](operations.md))."""

    retention: Annotated[Duration, Field(ge=timedelta(days=1))] | None = None
    """How long its entries are kept, at least a day. Unset: for ever."""


class MetricsSettings(Group):
    """Metrics for Prometheus (docs/operations.md)."""

    token: SecretStr | None = None
    """The token of `Authorization: Bearer` for `/metrics`. Without one, only processes that listen
    on a loopback address serve metrics."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """First port for a worker's metrics; each worker of a host takes the next free one. Unset: a
    worker serves no metrics."""
    host: str = "127.0.0.1"
    """The address for that port."""
    models: int = Field(default=20, ge=0, le=1000)
    """Most model names that a process's metrics show, besides those that a route names without `*`.
    Only names that an upstream has answered are shown; any other is `other`."""
    projects: bool = False
    """Also counts responses and tokens by project id. Each project adds 8 series to each worker;
    after 1,000 projects the others are `other`. A web process shows how many responses of a project
    wait, of the 100 projects with most of them."""

    @field_validator("token")
    @classmethod
    def _empty_is_unset(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is not None and value.get_secret_value() else None

    @field_validator("port", mode="before")
    @classmethod
    def _empty_port_is_unset(cls, value: object) -> object:
        return value or None
