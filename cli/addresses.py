"""The addresses of the database and of Redis, for commands that need no other setting.

They are read from where pydantic-settings reads them for web and workers: the environment, in any
case, then `backburner.toml`. But without pydantic: its import takes longer than a whole command.
Other settings are not looked at, so an operator can work while they have mistakes.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cli.errors import CommandFailed
from cli.output import print_status
from models.config.addresses import (
    DEFAULT_SCHEMA,
    normalise_database_url,
    require_redis_scheme,
    require_schema_name,
)
from models.config.config_file import find_config_file, read_config_file

_VARIABLES = {
    "database_url": "DATABASE_URL",
    "redis_url": "REDIS_URL",
    "database_schema": "BACKBURNER_DATABASE_SCHEMA",
}


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """What a connection needs to know; `Settings` has the same two."""

    dsn: str = field(repr=False)
    """the libpq URL (`postgresql://…`)"""
    database_schema: str
    """the setting of this name"""


def database_url() -> str | None:
    """The libpq URL of DATABASE_URL; None if it is not set. Raises CommandFailed or BadSettings."""
    return _read("database_url", normalise_database_url)


def redis_url() -> str | None:
    """The address of REDIS_URL; None if it is not set. Raises CommandFailed or BadSettings."""

    def check(url: str) -> str:
        require_redis_scheme(url)
        return url

    return _read("redis_url", check)


def database_schema() -> str:
    """The setting `database_schema`. Raises CommandFailed or BadSettings."""

    def check(name: str) -> str:
        require_schema_name(name)
        return name

    return _read("database_schema", check) or DEFAULT_SCHEMA


def _read(name: str, parse: Callable[[str], str]) -> str | None:
    variable = _VARIABLES[name]
    value = _of_environment(variable)
    if value is None:
        file = read_config_file(find_config_file())
        value = file.data.get(name, file.data.get(variable))
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise CommandFailed(f"{variable}: must be text")
    try:
        return parse(value)
    except ValueError as error:
        raise CommandFailed(f"{variable}: {error}") from error


def _of_environment(variable: str) -> str | None:
    found = (value for name, value in os.environ.items() if name.upper() == variable)  # noqa: TID251
    return next(found, None)


def is_of_up(data: Path | None) -> bool:
    """Whether a command is about the deployment of a data folder, as in `resolve_database`. Raises
    CommandFailed or BadSettings."""
    return data is not None or database_url() is None


def resolve_redis_url(data: Path | None) -> str | None:
    """The Redis beside the database that `resolve_database` names; None if REDIS_URL is not set.
    Raises CommandFailed or BadSettings."""
    from cli.embedded.data_folder import default_folder, redis_of

    if data is not None or database_url() is None:
        return redis_of(data or default_folder())
    return redis_url()


def resolve_database(data: Path | None) -> DatabaseAddress:
    """The database of the `up` that runs in the data folder if one is named, else DATABASE_URL,
    else that of the default data folder. Raises CommandFailed or BadSettings."""
    from cli.embedded.data_folder import database_of, default_folder, running_up

    address = database_url()
    if data is not None or address is None:
        address = database_of(data or default_folder())
    elif sys.stderr.isatty() and running_up(default_folder()) is not None:
        print_status("This is the database of DATABASE_URL; `--data .data` names that of `up`.")
    return DatabaseAddress(address, database_schema())
