"""Settings: environment first, then `backburner.toml` (models/config/config_file.py), then defaults; built once per process and passed down.

Durations accept a plain number of seconds ("2", "0.5") or an ISO 8601 duration. Nested names use two underscores:
`BACKBURNER_LIMITS__FIRST_TOKEN=30` in the environment is `first_token = 30` under `[limits]` in the file.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import NoDecode, SettingsConfigDict

from models.config.config_source import FileBackedSettings
from models.config.routes import Route, routing_errors
from models.secrets import parse_keys


def _parse_seconds(value: object) -> object:
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except ValueError:
            return value
    return value


def _parse_list(value: object) -> object:
    """A list from the environment: parted by commas, or as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return (
            json.loads(value)
            if value.startswith("[")
            else [entry.strip() for entry in value.split(",") if entry.strip()]
        )
    except ValueError:
        return value


Duration = Annotated[timedelta, BeforeValidator(_parse_seconds)]


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UpstreamSettings(_Group):
    """An OpenAI-compatible server that runs models, and its quirks (docs/upstreams.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = "default"
    """As routes call it; not configured, models/config/routes.py knows it."""
    base_url: str = ""
    """What a client would use as base URL, with `/v1`."""
    api_key_env: str | None = None
    """The variable of the environment that holds the key, where none is given."""
    api_key: SecretStr = Field(default=SecretStr("none"), validate_default=True)
    api: Literal["chat", "responses"] = "chat"
    """What it speaks: Chat Completions, or the Responses API itself."""
    headers: dict[str, SecretStr] = {}
    """That every request to it carries besides."""
    query: dict[str, str] = {}
    """Parameters that every request's address carries, `api-version` for instance."""
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    developer_role: Literal["developer", "system"] = "system"
    """How the upstream spells the role that gives instructions; templates of local servers know only `system`."""
    single_system_message: bool = False
    """The model's template knows one system message, at the start: all system and developer messages are put together there."""
    think_tags: bool = False
    """The model writes its reasoning into the text, between `<think>` tags."""
    effort_field: Literal[
        "reasoning_effort", "reasoning", "enable_thinking", "thinking", "think", "none"
    ] = "reasoning_effort"
    """How `reasoning.effort` is spelled: OpenAI's word; OpenRouter's object of that name; vLLM's and SGLang's `chat_template_kwargs`; the
    object `thinking` of DeepSeek, Kimi and GLM; Ollama's `think`; or not at all. The last four only know on and off."""
    reasoning_back: Literal[
        "none",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "thinking_blocks",
        "think_tags",
    ] = "none"
    """The field of an assistant message in which the model gets back what it thought before it called tools, until the user speaks again;
    `think_tags`: at the head of its text."""
    structured_output: Literal["json_schema", "json_object", "guided_json", "prompt"] = (
        "json_schema"
    )
    """How a JSON schema is asked for: as OpenAI's `response_format`; as its older `json_object` with the schema in the instructions; as old
    vLLM's `guided_json`; or in the instructions alone."""
    passthrough: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)] = ()
    """Top-level parameters outside the Responses API that are handed on to the upstream as they are."""
    count: Literal["auto", "responses", "vllm", "llama.cpp", "none"] = "auto"
    """How it is asked how many tokens a request has: OpenAI's `/responses/input_tokens`, vLLM's `/tokenize`, llama.cpp's `/apply-template` and
    `/tokenize`. `auto`: the first of an upstream whose `api` is `responses`, else none."""
    tokenizer: str = ""
    """A `tokenizer.json` on the workers' machines, to count with where the upstream does not; it needs the package `tokenizers`."""
    max_retries: int = 2
    """Attempts the openai client adds before the first byte, on 408, 409, 429, 5xx and connection errors."""
    connect_timeout: Duration = timedelta(seconds=10)
    first_token: Duration | None = None
    token_gap: Duration | None = None
    turn: Duration | None = None
    """These three go before those of `limits`."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Responses that one worker process runs there at a time. Unset: as many as it has streams; of several upstreams each three quarters."""
    wait: Duration = timedelta(seconds=10)
    """For a place where `concurrency` is reached, before the next upstream is asked, or the response is put off or refused."""
    circuit_failures: Annotated[int, Field(ge=1)] = 5
    """So many failures in a row, and a worker process asks it no more for `circuit_pause` (docs/upstreams.md)."""
    circuit_pause: Duration = timedelta(seconds=10)
    """Twice as long after each probe that fails, at most four times."""

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^\s/?#@\\]+(/[^\s?#]*)?", value):
            raise ValueError(
                "must be an http:// or https:// address without user name, query or fragment"
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, value: str | None) -> str | None:
        if value is not None and not _variable(value):
            raise ValueError(f"the variable {value} is not set in the environment")
        return value

    @field_validator("api_key")
    @classmethod
    def _from_the_environment(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        named = info.data.get("api_key_env")
        return (
            SecretStr(_variable(named))
            if named is not None and value.get_secret_value() == "none"
            else value
        )


def _variable(name: str) -> str:
    """A variable of the environment that the file names, empty when it is not set."""
    return os.environ.get(name, "")  # noqa: TID251  (this is settings being read)


class LeaseSettings(_Group):
    """Who is alive (design §4.3, §4.6)."""

    duration: Duration = timedelta(seconds=10)
    beat: Duration = timedelta(seconds=2)
    caution: Duration = timedelta(seconds=6)
    """Without a renewal for this long a worker starts no new turn."""
    observe: Duration = timedelta(seconds=5)
    """A sweeper must have seen the same expired lease for this long on its own clock before it reaps."""
    sweep: Duration = timedelta(seconds=2)
    ring_interval: Duration = timedelta(seconds=5)
    """A row without an owner is rung again after this long, then after twice that, and so on."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.duration < 3 * self.beat:
            raise ValueError("lease.duration must be at least three times lease.beat")
        if not self.beat < self.caution < self.duration:
            raise ValueError("lease.caution must lie between lease.beat and lease.duration")
        return self


class LimitSettings(_Group):
    """What ends stuck or oversized work (design §8)."""

    first_token: Duration = timedelta(seconds=600)
    token_gap: Duration = timedelta(seconds=300)
    turn: Duration = timedelta(hours=1)
    wall_clock: Duration = timedelta(hours=24)
    queue_wait: Duration = timedelta(hours=24)
    turns: int = 128
    body: int = 64 * 1024 * 1024
    """Bytes of a request body."""
    output: int = 64 * 1024 * 1024
    """Bytes of text one turn may produce."""


class CacheSettings(_Group):
    """Answers remembered for requests that ask for it (docs/cache.md)."""

    ttl: Duration = timedelta(hours=1)
    """For `cache: true`, in whole seconds."""
    longest_ttl: Duration = timedelta(days=1)
    """The most a request may ask for."""
    value_bytes: int = 1024 * 1024
    """An answer that is larger, sealed and in base64, is not remembered."""
    patience: Duration = timedelta(milliseconds=250)
    """How long Redis may take; longer is a miss, and for two seconds it is not asked again."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not timedelta(seconds=1) <= self.ttl <= self.longest_ttl:
            raise ValueError("cache.ttl must lie between one second and cache.longest_ttl")
        return self


class WebSettings(_Group):
    """The front."""

    ping: Duration = timedelta(seconds=15)
    """Between two keep-alive comments on an idle stream."""
    send_timeout: Duration = timedelta(seconds=60)
    """A reader that takes nothing for this long is let go; it can resume by number."""
    poll: Duration = timedelta(seconds=5)
    """How often a waiting reader looks at the row although nothing was published."""
    grace: Duration = timedelta(seconds=10)
    """How long foreground requests may drain at shutdown."""
    cancel_wait: Duration = timedelta(seconds=5)
    ephemeral_background: bool = False
    """Allow `background` with `store: false`, kept 10 minutes after its end."""
    reader_buffer: int = 256 * 1024
    """Bytes waiting for one slow reader before it is sent back to the log."""
    sockets: int = 1000
    """WebSockets that one process holds at a time."""
    socket_time: Duration = timedelta(hours=1)
    """How long one of them may be used; OpenAI's own limit."""


class WorkerSettings(_Group):
    """The workers."""

    grace: Duration = timedelta(seconds=2)
    """At SIGTERM, how long running responses may still end by themselves before they are handed over."""
    flush_interval: Duration = timedelta(seconds=1)
    flush_bytes: int = 64 * 1024
    """A response's tail is flushed to the event log at this size or after the interval."""
    journal_gap: Duration = timedelta(milliseconds=5)
    """Between two journal batches while there is much to write."""
    tail_bytes: int = 1024 * 1024
    """What one response may hold in memory that no answered flush covers; beyond it its upstream is read no further."""
    pool_size: int = 8
    purge_interval: Duration = timedelta(seconds=30)
    """Between two looks for responses whose retention is over."""


class ToolSettings(_Group):
    """Tools that this server runs for the model."""

    time: Duration = timedelta(seconds=120)
    """For one call."""
    answer: int = 256 * 1024
    """Bytes of each text in what one call tells the model; the rest is cut off, and the model is told so."""
    images: int = 8 * 1024 * 1024
    """Bytes of all images that one call shows the model, as base64; those beyond are left out, and the model is told so."""
    parallel: int = 16
    """Calls of one turn that run at the same time."""
    calls: int = 128
    """Calls of one turn that are run; those after them are refused to the model."""


class McpSettings(_Group):
    """MCP servers. How long a call may take, and how much of its result the model is told, stands in `tools`."""

    connect: Duration = timedelta(seconds=15)
    """For opening a session, both transports tried."""
    farewell: Duration = timedelta(seconds=1)
    """For telling a server that its session is over; nobody waits for more."""
    answer_bytes: int = 8 * 1024 * 1024
    """Of one answer: it is read into memory before anything can be cut off."""
    tools: int = 1024
    """Tools that one server may list."""
    list_bytes: int = 2 * 1024 * 1024
    """Of the list of one server's tools, as JSON."""
    redirects: int = 3
    """That are followed for one request, only ever within the server's own origin."""


class WebSearchSettings(_Group):
    """The provider that the `web_search` tool asks (worker/tools/search_providers.py). Without one the tool is left out."""

    provider: Literal["tavily", "brave", "searxng"] | None = None
    base_url: str = ""
    """Of the provider's API; for Tavily and Brave their own, unless another is given. It is asked as it is given, also on a private network."""
    api_key: SecretStr = SecretStr("")
    timeout: Duration = timedelta(seconds=20)
    """For one search."""
    answer_bytes: int = 4 * 1024 * 1024
    """Of one answer: it is read into memory before anything can be left out."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.base_url and not re.fullmatch(r"https?://[^\s/?#@\\]+(/[^\s?#]*)?", self.base_url):
            raise ValueError(
                "web_search.base_url must be an http:// or https:// address without user name, query or fragment"
            )
        if self.provider == "searxng" and not self.base_url:
            raise ValueError("web_search.base_url must name the SearXNG instance")
        if self.provider in ("tavily", "brave") and not self.api_key.get_secret_value():
            raise ValueError(f"web_search.api_key must be set for {self.provider}")
        return self


class CompactionSettings(_Group):
    """What stands for a history that was summed up (models/wire/compaction.py)."""

    threshold: int = Field(default=100_000, ge=1000)
    """Tokens of context from which a response with `context_management` is compacted whose client has not said from which."""
    user_messages: int = Field(default=80_000, ge=0)
    """Characters of older messages of users that are kept as they were, the newest first; about twenty thousand tokens."""
    calls: int = Field(default=64, ge=1)
    """Calls of the model that one compaction may take: a history too long for the model is summed up part by part."""


class EgressSettings(_Group):
    """What is fetched on behalf of clients (models/egress.py): files by URL."""

    allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)] = ()
    """Networks (CIDR) and host names that may be reached although they are not on the public internet, on any port; parted by commas."""
    timeout: Duration = timedelta(seconds=60)
    """For all files of one response together."""
    file_bytes: int = 32 * 1024 * 1024
    """Bytes of all files that one response has fetched, before base64."""
    redirects: int = 5

    @field_validator("allow")
    @classmethod
    def _networks_and_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ip_network(entry, strict=False)
            except ValueError:
                if not re.fullmatch(r"(?=.*[A-Za-z])[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", entry):
                    raise ValueError(
                        f"{entry!r} is neither a network such as 10.1.0.0/16 nor a host name"
                    ) from None
        return value


class MetricsSettings(_Group):
    """Figures for Prometheus (models/metrics.py)."""

    token: SecretStr | None = None
    """Who brings it as `Authorization: Bearer` may ask; without one, only processes that listen on a loopback address show figures."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Where a worker shows its own; the first free port from here on, for several on one host. Unset: nowhere."""
    host: str = "127.0.0.1"
    """The address for that port."""

    @field_validator("token")
    @classmethod
    def _none_when_empty(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is not None and value.get_secret_value() else None

    @field_validator("port", mode="before")
    @classmethod
    def _unset_when_empty(cls, value: object) -> object:
        return value or None


class Settings(FileBackedSettings):
    """Everything a process is told from outside."""

    model_config = SettingsConfigDict(
        env_prefix="BACKBURNER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
    )

    database_url: SecretStr = Field(validation_alias=AliasChoices("DATABASE_URL", "database_url"))
    redis_url: SecretStr = Field(validation_alias=AliasChoices("REDIS_URL", "redis_url"))
    upstream: UpstreamSettings = UpstreamSettings()
    """The upstream named `default`; where it is the only one, it serves all models."""
    upstreams: dict[str, UpstreamSettings] = {}
    """By name."""
    routes: dict[str, Route] = {}
    """Pattern -> upstreams that serve the models it matches (models/config/routes.py)."""
    lease: LeaseSettings = LeaseSettings()
    limits: LimitSettings = LimitSettings()
    web: WebSettings = WebSettings()
    cache: CacheSettings = CacheSettings()
    worker: WorkerSettings = WorkerSettings()
    tools: ToolSettings = ToolSettings()
    mcp: McpSettings = McpSettings()
    web_search: WebSearchSettings = WebSearchSettings()
    compaction: CompactionSettings = CompactionSettings()
    egress: EgressSettings = EgressSettings()
    metrics: MetricsSettings = MetricsSettings()
    secret_keys: SecretStr = SecretStr("")
    """Seal what clients trust us with (models/secrets.py): keys of 32 bytes in URL-safe base64, parted by commas. The first seals, all open;
    without any, requests that bring credentials for MCP servers are refused."""
    retention: Duration = timedelta(days=30)
    bootstrap_key: SecretStr | None = None
    """Fixes the first API key: any string of at least 16 characters."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    quarantine: bool = False
    """This worker process runs one response at a time, those that have killed two processes before."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_routing(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Types and routing are checked together, so that all mistakes are told at once."""
        wrong = list(routing_errors(raw)) if isinstance(raw, Mapping) else []
        try:
            built = handler(raw)
        except ValidationError as error:
            wrong = [
                *map(_rebuild_error, error.errors(include_url=False, include_input=False)),
                *wrong,
            ]
        if wrong:
            raise ValidationError.from_exception_data("Settings", wrong)
        return built

    @field_validator("database_url")
    @classmethod
    def _plain_scheme(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in {"postgres", "postgresql", "postgresql+psycopg"}:
            raise ValueError("must start with postgres://, postgresql:// or postgresql+psycopg://")
        return SecretStr(f"postgresql://{rest}")

    @field_validator("secret_keys")
    @classmethod
    def _usable_keys(cls, value: SecretStr) -> SecretStr:
        parse_keys(value.get_secret_value())
        return value

    @field_validator("bootstrap_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < 16:
            raise ValueError("must have at least 16 characters")
        return value

    @property
    def sealing_keys(self) -> list[bytes]:
        """The keys of `secret_keys`."""
        return parse_keys(self.secret_keys.get_secret_value())

    @property
    def dsn(self) -> str:
        """The libpq URL (`postgresql://…`), for psycopg."""
        return self.database_url.get_secret_value()


def _rebuild_error(error: Any) -> InitErrorDetails:
    """An error as it can be raised once more, without the offending value, which may be a secret."""
    message = _MESSAGES.get(error["type"], error["msg"].removeprefix("Value error, "))
    return {
        "type": PydanticCustomError(error["type"], "{words}", {"words": message}),
        "loc": error["loc"],
        "input": None,
    }


_MESSAGES = {
    "extra_forbidden": "is no setting",
    "missing": "must be given",
    "model_type": "must be a table",
    "too_short": "must not be empty",
}
