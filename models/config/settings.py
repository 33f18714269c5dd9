"""All settings of a process: environment first, then `backburner.toml`, then the defaults here.

They are built once per process and passed down. Durations accept a number of seconds ("2", "0.5")
or an ISO 8601 duration. Nested names use two underscores: `BACKBURNER_LIMITS__FIRST_TOKEN=30` in
the environment is `first_token = 30` under `[limits]` in the file. `docs/settings.md` lists all of
them; it is made from these classes.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import (
    AliasChoices,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import SettingsConfigDict

from models.config.addresses import (
    DEFAULT_SCHEMA,
    normalise_database_url,
    require_redis_scheme,
)
from models.config.config_source import FileBackedSettings
from models.config.console import ConsoleSettings
from models.config.extraction import ExtractionSettings
from models.config.groups import (
    AuditSettings,
    BatchSettings,
    CacheSettings,
    CompactionSettings,
    EgressSettings,
    FileSettings,
    LeaseSettings,
    LimitSettings,
    LineSettings,
    McpSettings,
    MetricsSettings,
    QuotaSettings,
    ToolSettings,
    TraceSettings,
    WebhookSettings,
    WebSearchSettings,
    WorkerSettings,
)
from models.config.retrieval import RetrievalSettings
from models.config.routes import Route, routing_errors
from models.config.s3 import S3Settings
from models.config.upstream import UpstreamSettings
from models.config.values import Duration, SchemaName, SentinelAddress, TextList
from models.config.web import WebSettings
from models.secrets import parse_keys


class Settings(FileBackedSettings):
    """Everything that an operator can set."""

    model_config = SettingsConfigDict(
        env_prefix="BACKBURNER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
    )

    database_url: SecretStr = Field(validation_alias=AliasChoices("DATABASE_URL", "database_url"))
    """The PostgreSQL database. `up` starts one; it uses the variable only with `--database-url`."""
    redis_url: SecretStr = Field(validation_alias=AliasChoices("REDIS_URL", "redis_url"))
    """The Redis server, or `sentinel://…` (docs/deploy.md, "Sentinel"). `up` starts one; it uses
    the variable only with `--redis-url`."""
    broker_url: SecretStr | None = None
    """A RabbitMQ (`amqp://…`, `amqps://…`) that carries the wake-ups of workers instead of Redis
    (docs/scaling.md)."""
    database_schema: SchemaName = DEFAULT_SCHEMA
    """The schema of the tables. Installations that share a database set it."""
    upstream: UpstreamSettings = UpstreamSettings()
    """The upstream named `default`; if it is the only one, it serves all models."""
    upstreams: dict[str, UpstreamSettings] = {}
    """Upstreams by name."""
    routes: dict[str, Route] = {}
    """Which upstreams serve which models."""
    lease: LeaseSettings = LeaseSettings()
    limits: LimitSettings = LimitSettings()
    line: LineSettings = LineSettings()
    web: WebSettings = WebSettings()
    cache: CacheSettings = CacheSettings()
    quotas: QuotaSettings = QuotaSettings()
    worker: WorkerSettings = WorkerSettings()
    tools: ToolSettings = ToolSettings()
    mcp: McpSettings = McpSettings()
    web_search: WebSearchSettings = WebSearchSettings()
    compaction: CompactionSettings = CompactionSettings()
    egress: EgressSettings = EgressSettings()
    webhooks: WebhookSettings = WebhookSettings()
    files: FileSettings = FileSettings()
    s3: S3Settings = S3Settings()
    batches: BatchSettings = BatchSettings()
    console: ConsoleSettings = ConsoleSettings()
    extraction: ExtractionSettings = ExtractionSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    audit: AuditSettings = AuditSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()
    secret_keys: SecretStr = SecretStr("")
    """Keys that seal secrets at rest: 32 bytes in URL-safe base64, separated by commas. The first
    one seals, all unseal. Without one, requests with MCP servers are refused."""
    allowed_hosts: TextList = ()
    """Host names under which pages without a key are served, besides addresses and `localhost`
    (docs/security.md)."""
    retention: Duration = timedelta(days=30)
    """How long a response is kept after its end; a change holds for new responses."""
    bootstrap_key: SecretStr | None = None
    """The first API key, at least 16 characters; `up` makes one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of log lines that are written."""
    debuggable: bool = False
    """Lets web and workers dump core, and debuggers of the same user read their memory
    (docs/security.md)."""
    quarantine: bool = False
    """Makes this worker a quarantine worker, for responses whose workers crashed twice."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_routing(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Checks types and routing together, so that one error lists all mistakes."""
        errors = list(routing_errors(raw)) if isinstance(raw, Mapping) else []
        try:
            settings = handler(raw)
        except ValidationError as error:
            errors = [
                *map(_rebuild_error, error.errors(include_url=False, include_input=False)),
                *errors,
            ]
        if errors:
            raise ValidationError.from_exception_data("Settings", errors)
        return settings

    @field_validator("database_url")
    @classmethod
    def _normalise_scheme(cls, value: SecretStr) -> SecretStr:
        return SecretStr(normalise_database_url(value.get_secret_value()))

    @field_validator("redis_url")
    @classmethod
    def _check_redis_scheme(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        require_redis_scheme(url)
        SentinelAddress.parse(url)
        return value

    @field_validator("broker_url")
    @classmethod
    def _check_broker_scheme(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("amqp://", "amqps://")):
            raise ValueError("must start with amqp:// or amqps://")
        return value

    @field_validator("secret_keys")
    @classmethod
    def _check_keys(cls, value: SecretStr) -> SecretStr:
        parse_keys(value.get_secret_value())
        return value

    @field_validator("bootstrap_key")
    @classmethod
    def _check_length(cls, value: SecretStr | None) -> SecretStr | None:
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


def sqlalchemy_url(dsn: str) -> str:
    """The same address for SQLAlchemy, with psycopg 3 as its driver."""
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


def _rebuild_error(error: Any) -> InitErrorDetails:
    """A copy of a validation error without the wrong value, which may be a secret."""
    message = _MESSAGES.get(error["type"], error["msg"].removeprefix("Value error, "))
    return {
        "type": PydanticCustomError(error["type"], "{message}", {"message": message}),
        "loc": error["loc"],
        "input": None,
    }


_MESSAGES = {
    "extra_forbidden": "is not a setting",
    "missing": "must be given",
    "model_type": "must be a table",
    "too_short": "must not be empty",
}
