"""The groups of settings: each class is one table of `backburner.toml`, such as `[limits]`.

The text below each setting is its meaning in `docs/settings.md`.
"""

from datetime import timedelta
from importlib.util import find_spec
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from models.config.values import (
    EMPTY_IS_UNSET,
    Bytes,
    Characters,
    Duration,
    Group,
    HttpAddress,
    Secret,
    TextList,
    Tokens,
    check_destinations,
)
from models.process import default_budget


class LeaseSettings(Group):
    """When a process counts as dead."""

    duration: Duration = timedelta(seconds=10)
    """Validity of a lease after a heartbeat; at least three times `lease.beat`."""
    beat: Duration = timedelta(milliseconds=500)
    """Time between two heartbeats."""
    caution: Duration = timedelta(seconds=6)
    """A worker starts no turn when its last renewal is older."""
    observe: Duration = timedelta(seconds=5)
    """A process is dead when its expired lease was seen for so long."""
    sweep: Duration = timedelta(seconds=2)
    """Time between two sweeps of a worker."""
    enqueue_interval: Duration = timedelta(seconds=5)
    """A response whose message may be lost is enqueued again after this time, then twice this time,
    and so on."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.duration < 3 * self.beat:
            raise ValueError("lease.duration must be at least three times lease.beat")
        if not self.beat < self.caution < self.duration:
            raise ValueError("lease.caution must lie between lease.beat and lease.duration")
        return self


class LineSettings(Group):
    """How long responses of lower service tiers and of completion windows wait behind others
    (docs/projects.md, "Turns"; docs/background.md, "Windows")."""

    flex_wait: Duration = timedelta(minutes=10)
    """Limit: how long `service_tier: flex` waits behind all others."""
    window_margin: float = Field(default=0.5, ge=1 / 3, le=1)
    """The share of a completion window that is left when a waiting response counts as `default`; at
    least a third, which keeps windows in the order of their ends."""
    continuation_lead: Annotated[Duration, Field(le=timedelta(hours=1))] = timedelta(minutes=10)
    """Limit: a follow-up with a `continuation_id` waits as if it had come so much earlier."""


class LimitSettings(Group):
    """Limits that end responses which are stuck or too large."""

    first_token: Duration = timedelta(seconds=600)
    """Limit: longest wait for the first token of a turn."""
    token_gap: Duration = timedelta(seconds=300)
    """Limit: longest pause between two tokens of a turn."""
    turn: Duration = timedelta(hours=1)
    """Limit: longest duration of one turn."""
    wall_clock: Duration = timedelta(hours=24)
    """Limit: longest time from the first claim of a response to its end."""
    queue_wait: Duration = timedelta(hours=24)
    """Limit: longest wait of a response for its first claim."""
    waiting_chain: int = Field(default=1000, ge=1, le=5000)
    """Limit: most responses in a row that each wait for the one before."""
    turns: int = 128
    """Limit: most turns of one response."""
    body: Bytes = 64 * 1024 * 1024
    """Limit: largest request body."""
    text: Bytes = 4 * 1024 * 1024
    """Limit: the same without inline files."""
    history: Bytes = 72 * 1024 * 1024
    """Limit: largest history with its input; each JSON value counts 32 bytes more. A worker needs
    five times as much memory."""
    values: int = Field(default=800_000, ge=1000)
    """Limit: most JSON values in a body; a list or object counts as four."""
    output: Bytes = 16 * 1024 * 1024
    """Limit: most text of one turn. A worker needs about 20 times as much memory."""
    response_output: Bytes = 32 * 1024 * 1024
    """Limit: most output of all turns, with results of tools, counted as `limits.history`."""


class CacheSettings(Group):
    """The answer cache: stored answers for requests that ask for it (docs/cache.md)."""

    ttl: Duration = timedelta(hours=1)
    """How long an answer is kept for `cache: true`."""
    longest_ttl: Duration = timedelta(days=1)
    """Limit: longest `ttl` of a request."""
    value_bytes: Bytes = 1024 * 1024
    """Limit: largest stored answer, after sealing and base64."""
    project_bytes: Bytes = 32 * 1024 * 1024
    """Limit: most bytes of one project's cached answers."""
    project_answers: int = Field(default=10_000, ge=1)
    """Limit: most cached answers of one project."""
    patience: Duration = timedelta(milliseconds=250)
    """Limit: longest wait for Redis; then it is a miss, and the cache is not used for two
    seconds."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not timedelta(seconds=1) <= self.ttl <= self.longest_ttl:
            raise ValueError("cache.ttl must lie between one second and cache.longest_ttl")
        return self


class QuotaSettings(Group):
    """What one project may use, unless it has quotas of its own (docs/limits.md). Unset or 0: no
    limit."""

    requests_per_minute: int | None = Field(default=None, ge=0)
    """Limit: requests that create something, in a minute."""
    tokens_per_minute: Tokens | None = Field(default=None, ge=0)
    """Limit: input and output tokens in a minute."""
    running: int | None = Field(default=None, ge=0)
    """Limit: responses that have not ended."""
    queued: int | None = Field(default=None, ge=0)
    """Limit: responses that wait for their first claim."""
    open_streams: int | None = Field(default=None, ge=0)
    """Limit: streams that are sent, and forwarded requests."""
    open_sockets: int | None = Field(default=None, ge=0)
    """Limit: open WebSockets."""
    stored_bytes: Bytes | None = Field(default=None, ge=0)
    """Limit: bytes of stored responses and conversations."""
    conversations: int | None = Field(default=None, ge=0)
    """Limit: stored conversations."""
    files: int | None = Field(default=None, ge=0)
    """Limit: stored files."""
    file_bytes: Bytes | None = Field(default=None, ge=0)
    """Limit: bytes of stored files."""
    batches: int | None = Field(default=200, ge=0)
    """Limit: batches that have not ended, or failed within an hour."""
    vector_stores: int | None = Field(default=None, ge=0)
    """Limit: vector stores that have not expired."""
    vector_bytes: Bytes | None = Field(default=None, ge=0)
    """Limit: bytes of the texts and embeddings in vector stores."""
    code_sessions: int | None = Field(default=None, ge=0)
    """Limit: sessions of [containers](code.md) at the same time."""
    code_memory_bytes: Bytes | None = Field(default=None, ge=0)
    """Limit: sum of the memory limits of these sessions."""
    code_seconds_per_day: int | None = Field(default=None, ge=0)
    """Limit: CPU seconds of code of a day in UTC."""
    tokens_per_day: Tokens | None = Field(default=None, ge=0)
    """Limit: input and output tokens of a day in UTC."""
    tokens_per_month: Tokens | None = Field(default=None, ge=0)
    """Limit: input and output tokens of a calendar month in UTC."""


class WorkerSettings(Group):
    """The workers."""

    grace: Duration = timedelta(seconds=2)
    """How long responses may still end after SIGTERM, before they are handed over."""
    call_grace: Duration = timedelta(seconds=10)
    """The same for a response with a tool call that must not run twice."""
    flush_interval: Duration = timedelta(seconds=1)
    """Time between two flushes of a response's events."""
    flush_bytes: Bytes = 64 * 1024
    """Size at which they are flushed earlier."""
    journal_gap: Duration = timedelta(milliseconds=5)
    """Shortest time between two writes to the journal; under load up to five times."""
    tail_bytes: Bytes = 1024 * 1024
    """Most unflushed events of one response; above it, its upstream is not read."""
    pool_size: int = Field(default=8, ge=1)
    """Limit: database connections; one project uses at most two thirds."""
    memory: Annotated[Bytes, Field(ge=128 * 1024 * 1024)] | None = None
    """Limit: most memory of one worker; from three quarters on it claims nothing. Unset: 80 % of
    the container's limit, else half of the machine's."""
    probation: Duration = timedelta(seconds=10)
    """How long a response in quarantine runs before another may take its place in its group."""
    purge_interval: Duration = timedelta(seconds=30)
    """Time between two purges."""
    usage_entries: Duration = timedelta(days=7)
    """How long usage is kept by the minute and the hour."""

    @property
    def memory_budget(self) -> int | None:
        """Bytes; None: nothing is known, and nothing is limited."""
        return default_budget() if self.memory is None else self.memory

    @property
    def longest_grace(self) -> timedelta:
        """After this time a stopping worker hands over everything."""
        return max(self.grace, self.call_grace)


class ToolSettings(Group):
    """Tools that this server runs for the model."""

    time: Duration = timedelta(seconds=120)
    """Limit: longest duration of one tool call."""
    answer: Bytes = 256 * 1024
    """Limit: longest text of one result."""
    images: Bytes = 8 * 1024 * 1024
    """Limit: most images of one result, as base64."""
    parallel: int = 16
    """Limit: tool calls of one turn at the same time."""
    calls: int = 128
    """Limit: tool calls of one turn that are run."""
    defer_beyond: int = Field(default=0, ge=0)
    """More functions and MCP tools than this are loaded on demand, by a tool search. 0: only what
    clients mark."""


class McpSettings(Group):
    """MCP servers; limits of calls are in `tools`."""

    connect: Duration = timedelta(seconds=15)
    """Limit: longest time to open a session."""
    farewell: Duration = timedelta(seconds=1)
    """Longest time to close a session."""
    servers: int = Field(default=16, ge=1)
    """Limit: most MCP servers of one request."""
    answer_bytes: Bytes = 8 * 1024 * 1024
    """Limit: largest reply of an MCP server."""
    answer_values: int = Field(default=32_000, ge=1000)
    """Limit: most JSON values in such a reply."""
    blocks: int = Field(default=1000, ge=1)
    """Limit: most content blocks of one result."""
    tools: int = 1024
    """Limit: most tools of one server."""
    tools_in_all: int = Field(default=2048, ge=1)
    """Limit: most tools of all servers of one response."""
    list_bytes: Bytes = 2 * 1024 * 1024
    """Limit: largest list of one server's tools."""
    list_bytes_in_all: Bytes = 4 * 1024 * 1024
    """Limit: largest lists of all servers of one response."""
    redirects: int = 3
    """Limit: redirects of one request, in the server's own origin."""
    require_approval: Literal["always", "never"] = "always"
    """For tools without `require_approval`."""


class WebSearchSettings(Group):
    """The provider of the tool `web_search` (docs/tools.md)."""

    provider: Literal["tavily", "brave", "searxng"] | None = None
    """The provider's API."""
    base_url: HttpAddress = ""
    """Its address, also on a private network; required for SearXNG."""
    api_key: SecretStr = SecretStr("")
    """The key; required for Tavily and Brave."""
    timeout: Duration = timedelta(seconds=20)
    """Limit: longest duration of one search."""
    answer_bytes: Bytes = 4 * 1024 * 1024
    """Limit: largest reply."""
    omit: bool = False
    """Without a provider: leaves out a `web_search` with `external_web_access` (Codex). On in
    `up`."""

    @model_validator(mode="after")
    def _check_provider(self) -> Self:
        if self.provider == "searxng" and not self.base_url:
            raise ValueError("web_search.base_url must name the SearXNG instance")
        if self.provider in ("tavily", "brave") and not self.api_key.get_secret_value():
            raise ValueError(f"web_search.api_key must be set for {self.provider}")
        return self


class ImageSettings(Group):
    """The tool `image_generation` at upstreams that do not have it (docs/tools.md)."""

    model: Annotated[str | None, EMPTY_IS_UNSET] = None
    """The model that makes images, by a route of `/v1/images/*`. Unset: only native upstreams have
    the tool."""
    response_format: Annotated[Literal["b64_json"] | None, EMPTY_IS_UNSET] = None
    """Sent to the model's upstream, for engines that otherwise answer only with an address;
    OpenAI's models refuse it."""
    bytes: Bytes = Field(default=12 * 1024 * 1024, ge=1)
    """Limit: largest image that is made or edited."""
    inputs: int = Field(default=16, ge=1)
    """Limit: most images of one edit; the newest ones."""
    time: Duration = timedelta(minutes=10)
    """Limit: longest time of one call. Engines on small machines need minutes."""


class CompactionSettings(Group):
    """Compaction: a summary that replaces a long history (docs/state.md)."""

    threshold: Annotated[Tokens, Field(ge=1000)] = 100_000
    """Context from which `context_management` compacts, unless the client names one."""
    user_messages: Annotated[Characters, Field(ge=0)] = 80_000
    """Text of user messages that is kept, the newest first."""
    calls: int = Field(default=64, ge=1)
    """Limit: most model calls of one compaction."""


class EgressSettings(Group):
    """What this server fetches for clients, and what it lets upstreams fetch (docs/tools.md)."""

    allow: TextList = ()
    """Networks (CIDR) and host names outside the public internet that may be reached; also
    `*.example.com`."""
    public: bool = True
    """Whether the public internet may be reached."""
    resolve: bool = True
    """Looks up host names that only the upstream fetches (docs/security.md)."""
    resolve_time: Duration = timedelta(seconds=2)
    """Limit: longest time for these look-ups of one request."""
    timeout: Duration = timedelta(seconds=60)
    """Limit: longest time for all files of one response."""
    file_bytes: Bytes = 32 * 1024 * 1024
    """Limit: most bytes of all files of one response, before base64."""
    memory: Bytes = 256 * 1024 * 1024
    """Limit: most memory of a worker for files of all responses."""
    redirects: int = 5
    """Limit: redirects that one download follows."""

    @field_validator("allow")
    @classmethod
    def _check_entries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_destinations(value)


class TraceSettings(Group):
    """Traces by OpenTelemetry (docs/operations.md). `OTEL_*` configure where they are sent."""

    enabled: bool = False
    """Records and sends traces. Needs the package's extra `otel`."""
    content: bool = False
    """Spans also have what models and tools get and answer."""
    propagate: bool = False
    """Requests to upstreams have the header `traceparent`."""

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

    token: Secret = None
    """The token of `/metrics`. Without one, only a loopback address has it."""
    port: Annotated[Annotated[int, Field(ge=1, le=65535)] | None, EMPTY_IS_UNSET] = None
    """First port for workers' metrics; each worker of a host takes the next free one."""
    host: str = "127.0.0.1"
    """The address for that port."""
    models: int = Field(default=20, ge=0, le=1000)
    """Most model names besides those of routes without `*`; any other is `other`."""
    projects: bool = False
    """Also counts by project id: 9 series each in each worker, of 1 000 projects; the 100 projects
    with most waiting responses."""
