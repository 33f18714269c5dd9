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
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from models.config import feature_groups, groups
from models.config.addresses import (
    DEFAULT_SCHEMA,
    normalise_database_url,
    require_redis_scheme,
)
from models.config.config_file import BadSettings, Mistake, find_config_file, read_config_file
from models.config.prices import PriceSettings
from models.config.routes import Route, routing_errors
from models.config.upstream import UpstreamSettings
from models.config.values import CellName, Duration, SchemaName, SentinelAddress, TextList
from models.config.web import WebSettings
from models.secrets import parse_keys

UNPREFIXED_VARIABLES = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
"""Settings whose environment variables have no prefix."""
WEB_SEARCH_VARIABLE = "BACKBURNER_WEB_SEARCH__PROVIDER"


class ConfigFileSource(TomlConfigSettingsSource):
    """The values of `backburner.toml`, after the environment.

    The file is read twice. `read_config_file` reads it first, because it knows the line of a
    mistake: pydantic-settings skips a missing file, drops the file's name from a syntax error, and
    accepts keys in any case, for which no line would be known later.
    """

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        file = read_config_file(find_config_file())
        mistakes = [
            Mistake("file", str(file.path), "is not a setting", file.line((key,)), key)
            for key in file.data
            if key != key.lower() and key not in UNPREFIXED_VARIABLES.values()
        ]
        if mistakes:
            raise BadSettings(mistakes)
        super().__init__(settings_cls, toml_file=file.path)

    def __call__(self) -> dict[str, Any]:
        """All values. Routes of the environment replace those of the file; other tables merge."""
        values = super().__call__()
        if "routes" in self.current_state:
            values.pop("routes", None)
        return values


class FileBackedSettings(BaseSettings):
    """Settings that are read from the environment, else from the file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources; the first one that has a value counts. Raises BadSettings."""
        return init_settings, env_settings, ConfigFileSource(settings_cls)


def _addresses(value: SecretStr) -> list[str]:
    return [url.strip() for url in value.get_secret_value().split(",") if url.strip()]


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
    """PostgreSQL. `up` starts one, and uses the variable only with `--database-url`."""
    redis_url: SecretStr = Field(validation_alias=AliasChoices("REDIS_URL", "redis_url"))
    """Redis, or `sentinel://…` (docs/deploy.md). `up` starts one, and uses the variable only with
    `--redis-url`."""
    event_redis_urls: SecretStr = SecretStr("")
    """More Redis servers, which share the live events (docs/scaling.md). The same list, in the same
    order, for all processes."""
    broker_url: SecretStr | None = None
    """A RabbitMQ (`amqp://…`, `amqps://…`) for the wake-ups of workers (docs/scaling.md)."""
    database_schema: SchemaName = DEFAULT_SCHEMA
    """The schema of the tables, for installations that share a database."""
    cell: CellName = ""
    """The name of this deployment where several serve as one (docs/cells.md)."""
    cells: dict[CellName, feature_groups.CellSettings] = {}
    """All cells by name, for `backburner cells` and the console (docs/cells.md)."""
    upstream: UpstreamSettings = UpstreamSettings()
    """The upstream named `default`; if it is the only one, it serves all models."""
    upstreams: dict[str, UpstreamSettings] = {}
    """Upstreams by name."""
    routes: dict[str, Route] = {}
    """Which upstreams serve which models."""
    lease: groups.LeaseSettings = groups.LeaseSettings()
    limits: groups.LimitSettings = groups.LimitSettings()
    line: groups.LineSettings = groups.LineSettings()
    prices: PriceSettings = PriceSettings()
    web: WebSettings = WebSettings()
    cache: groups.CacheSettings = groups.CacheSettings()
    quotas: groups.QuotaSettings = groups.QuotaSettings()
    worker: groups.WorkerSettings = groups.WorkerSettings()
    tools: groups.ToolSettings = groups.ToolSettings()
    mcp: groups.McpSettings = groups.McpSettings()
    web_search: groups.WebSearchSettings = groups.WebSearchSettings()
    images: groups.ImageSettings = groups.ImageSettings()
    moderation: feature_groups.ModerationSettings = feature_groups.ModerationSettings()
    compaction: groups.CompactionSettings = groups.CompactionSettings()
    egress: groups.EgressSettings = groups.EgressSettings()
    webhooks: feature_groups.WebhookSettings = feature_groups.WebhookSettings()
    files: feature_groups.FileSettings = feature_groups.FileSettings()
    s3: feature_groups.S3Settings = feature_groups.S3Settings()
    batches: feature_groups.BatchSettings = feature_groups.BatchSettings()
    schedules: feature_groups.ScheduleSettings = feature_groups.ScheduleSettings()
    steering: feature_groups.SteeringSettings = feature_groups.SteeringSettings()
    console: feature_groups.ConsoleSettings = feature_groups.ConsoleSettings()
    search: feature_groups.SearchSettings = feature_groups.SearchSettings()
    extraction: feature_groups.ExtractionSettings = feature_groups.ExtractionSettings()
    retrieval: feature_groups.RetrievalSettings = feature_groups.RetrievalSettings()
    code: feature_groups.CodeSettings = feature_groups.CodeSettings()
    audit: groups.AuditSettings = groups.AuditSettings()
    metrics: groups.MetricsSettings = groups.MetricsSettings()
    traces: groups.TraceSettings = groups.TraceSettings()
    secret_keys: SecretStr = SecretStr("")
    """Keys that seal secrets: 32 bytes in URL-safe base64, separated by commas. The first seals,
    all unseal."""
    allowed_hosts: TextList = ()
    """Host names that serve pages without a key, besides addresses and `localhost`
    (docs/security.md)."""
    retention: Duration = timedelta(days=30)
    """How long new responses are kept after their end."""
    bootstrap_key: SecretStr | None = None
    """The first API key, at least 16 characters."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of log lines."""
    debuggable: bool = False
    """Allows core dumps and debuggers (docs/security.md)."""
    quarantine: bool = False
    """Makes this worker a quarantine worker."""

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

    @field_validator("event_redis_urls")
    @classmethod
    def _check_event_servers(cls, value: SecretStr) -> SecretStr:
        for url in _addresses(value):
            require_redis_scheme(url)
            SentinelAddress.parse(url)
        return value

    @property
    def event_servers(self) -> tuple[str, ...]:
        """The addresses of the Redis servers that carry events: `redis_url` first."""
        return (self.redis_url.get_secret_value(), *_addresses(self.event_redis_urls))

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
    def missing_tools(self) -> dict[str, str]:
        """Server tools that no process can run with these settings -> the variable of the setting
        that each needs."""
        return {"web_search": WEB_SEARCH_VARIABLE} if self.web_search.provider is None else {}

    @property
    def dsn(self) -> str:
        """The libpq URL (`postgresql://…`), for psycopg."""
        return self.database_url.get_secret_value()


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
