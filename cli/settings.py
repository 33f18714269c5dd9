"""What the operator's commands are told by the environment, before there are databases to speak of."""

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from cli.embedded.process import StartFailed
from models.config.config_source import UNPREFIXED_VARIABLES, FileBackedSettings
from models.config.configuration import SETTINGS_ERRORS, BadSettings, build, to_bad_settings
from models.config.routes import Route
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings

NO_DATABASE = "postgresql://unused"
NO_REDIS = "redis://unused"
"""Commands that need neither of the two; the settings do."""
ROOT = Path(__file__).resolve().parent.parent
"""The checkout: children run here, and `.data` lies here."""


class StackSettings(FileBackedSettings):
    """Everything is optional here: what is missing, `up` starts itself."""

    model_config = SettingsConfigDict(
        env_prefix="BACKBURNER_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database_url: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("DATABASE_URL")
    )
    redis_url: SecretStr | None = Field(default=None, validation_alias=AliasChoices("REDIS_URL"))
    upstream: UpstreamSettings = UpstreamSettings()
    upstreams: dict[str, UpstreamSettings] = {}
    routes: dict[str, Route] = {}
    bootstrap_key: SecretStr | None = Field(default=None, min_length=16)
    secret_keys: SecretStr | None = None
    pg_bin: Path | None = None
    """The folder of `initdb` and `postgres`, for a machine without the wheel."""


def secret_value(secret: SecretStr | None) -> str | None:
    """What the secret hides; an empty one counts as none."""
    return secret.get_secret_value() or None if secret else None


def read_settings() -> StackSettings:
    """The word of the environment and of the file; raises as `checked` does."""
    try:
        return StackSettings()
    except SETTINGS_ERRORS as error:
        raise startup_error(to_bad_settings(error)) from error


def child_settings(database_url: str, redis_url: str) -> Settings:
    """The settings that every process will see with these two addresses.

    If they would refuse to start: StartFailed where only the environment is at fault, BadSettings where `backburner.toml` is.
    """
    try:
        return build(database_url=SecretStr(database_url), redis_url=SecretStr(redis_url))
    except BadSettings as bad:
        raise startup_error(bad) from bad


def configured_settings() -> Settings:
    """Those of this environment; addresses of databases may be missing, `up` brings its own. Raises BadSettings."""
    try:
        return build()
    except BadSettings as bad:
        left = [
            mistake
            for mistake in bad.mistakes
            if mistake.source != "default" or mistake.key not in UNPREFIXED_VARIABLES.values()
        ]
        if left:
            raise BadSettings(left) from bad
        absent = {mistake.key for mistake in bad.mistakes}
        unused = {
            "DATABASE_URL": ("database_url", NO_DATABASE),
            "REDIS_URL": ("redis_url", NO_REDIS),
        }
        return build(**dict(given for variable, given in unused.items() if variable in absent))


def startup_error(bad: BadSettings) -> StartFailed | BadSettings:
    """The first complaint in one sentence, or, about a file, all of them; without the offending values, which may be secrets."""
    first = bad.mistakes[0]
    if any(mistake.source == "file" or mistake.key is None for mistake in bad.mistakes):
        return bad
    return StartFailed(f"the setting {first.key} is not usable: {first.message}")
