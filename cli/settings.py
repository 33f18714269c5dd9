"""What the operator's commands are told by the environment, before there are databases to speak of."""

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cli.process import StartFailed
from models.settings import Settings, UpstreamSettings

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: children run here, and `.data` lies here."""


class StackSettings(BaseSettings):
    """Everything is optional here: what is missing, `up` starts itself."""

    model_config = SettingsConfigDict(env_prefix="BACKBURNER_", env_nested_delimiter="__", frozen=True, extra="ignore")

    database_url: SecretStr | None = Field(default=None, validation_alias=AliasChoices("DATABASE_URL"))
    redis_url: SecretStr | None = Field(default=None, validation_alias=AliasChoices("REDIS_URL"))
    upstream: UpstreamSettings = UpstreamSettings()
    bootstrap_key: SecretStr | None = Field(default=None, min_length=16)
    secret_keys: SecretStr | None = None
    pg_bin: Path | None = None
    """The folder of `initdb` and `postgres`, for a machine without the wheel."""


def plain(secret: SecretStr | None) -> str | None:
    """What the secret hides; an empty one counts as none."""
    return secret.get_secret_value() or None if secret else None


def read_settings() -> StackSettings:
    """The environment's word; StartFailed where it makes no sense."""
    try:
        return StackSettings()
    except ValidationError as error:
        raise StartFailed(sentence(error)) from error


def checked(database_url: str, redis_url: str) -> Settings:
    """The settings that every process will see with these two addresses; StartFailed if they would refuse to start."""
    try:
        return Settings(database_url=SecretStr(database_url), redis_url=SecretStr(redis_url))
    except ValidationError as error:
        raise StartFailed(sentence(error)) from error


def sentence(error: ValidationError) -> str:
    """The first complaint, without the offending value, which may be a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = "__".join(str(part) for part in first["loc"]).upper()
    known = name if name in {"DATABASE_URL", "REDIS_URL"} else f"BACKBURNER_{name}"
    return f"the setting {known} is not usable: {first['msg'].removeprefix('Value error, ')}"
