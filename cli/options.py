"""Options that several commands have, and how a command ends when it fails.

Functions here import what they need when they run, so that `--help` and completion load nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandFailed
from cli.output import print_status

EXIT_FAILED = 1
EXIT_BAD_CONFIGURATION = 2
"""The exit status if `backburner.toml` has mistakes."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of databases, credentials and logs.", show_default=".data in the checkout"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


@contextmanager
def exit_on_failure(status: int = EXIT_FAILED) -> Iterator[None]:
    """Ends the process with `status` and one sentence, or with 2 and a line for each mistake.

    Other exceptions keep their traceback.
    """
    from models.config.configuration import BadSettings

    try:
        yield
    except CommandFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(status) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad


def database_schema() -> str | None:
    """The setting `database_schema`. Raises CommandFailed or BadSettings."""
    from cli.settings import read_settings

    return read_settings().database_schema


def parse_duration(value: str | timedelta) -> timedelta:
    """A duration of the command line: a number of seconds, or with units as in `90s`, `2h`."""
    from pydantic import TypeAdapter, ValidationError

    from models.config.values import Duration

    try:
        return TypeAdapter[timedelta](Duration).validate_python(value)
    except ValidationError as error:
        raise typer.BadParameter("must be a duration such as 90s, 15m, 2h or 3d") from error


def resolve_redis_url(data: Path | None) -> str | None:
    """The Redis beside the database that `resolve_database_url` names; None if REDIS_URL is not
    set."""
    from cli.embedded.data_folder import default_folder, embedded_redis
    from cli.settings import read_settings, secret_value

    settings = read_settings()
    if data is not None or not secret_value(settings.database_url):
        return embedded_redis(data or default_folder())
    return secret_value(settings.redis_url)


def resolve_database_url(data: Path | None) -> str:
    """The database that `up` runs in the data folder if one is named, else DATABASE_URL, else that
    of the default data folder. Raises CommandFailed."""
    from cli.embedded.data_folder import default_folder, embedded_database, running_up
    from cli.settings import NO_REDIS, child_settings, read_settings, secret_value

    address = secret_value(read_settings().database_url)
    if data is not None or not address:
        return embedded_database(data or default_folder())
    if sys.stderr.isatty() and running_up(default_folder()) is not None:
        print_status("This is the database of DATABASE_URL; `--data .data` names that of `up`.")
    return child_settings(address, NO_REDIS).dsn
