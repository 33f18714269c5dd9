"""Options that several commands have, and how a command ends when it fails.

Functions here import what they need when they run, so that `--help` and completion load nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CommandFailed
from cli.output import print_status
from models.config import units
from models.config.config_file import BadSettings

if TYPE_CHECKING:
    from cli.addresses import DatabaseAddress

EXIT_FAILED = 1
EXIT_BAD_CONFIGURATION = 2
"""The exit status if `backburner.toml` has mistakes."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of databases, credentials and logs.",
        show_default=".data in the checkout, else ~/.local/share/backburner",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


@contextmanager
def exit_on_failure(status: int = EXIT_FAILED) -> Iterator[None]:
    """Ends the process with `status` and one sentence, or with 2 and a line for each mistake.

    Other exceptions keep their traceback.
    """
    try:
        yield
    except CommandFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(status) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad


def parse_duration(value: str | timedelta) -> timedelta:
    """A duration of the command line: a number of seconds, or with units as in `90s`, `2h`."""
    try:
        duration = value if isinstance(value, timedelta) else units.parse_duration(value)
    except OverflowError:
        duration = None
    if duration is None or duration < timedelta(0):
        raise typer.BadParameter("must be a duration such as 90s, 15m, 2h or 3d")
    return duration


def duration_option(meaning: str, show_default: bool | str = True) -> Any:
    """An option whose value is a duration. `show_default`: as of `typer.Option`."""
    return typer.Option(
        parser=parse_duration, metavar="DURATION", help=meaning, show_default=show_default
    )


def resolve_redis_url(data: Path | None) -> str | None:
    """The Redis beside the database that `resolve_database` names; None if REDIS_URL is not set.
    Raises CommandFailed or BadSettings."""
    from cli.addresses import database_url, redis_url
    from cli.embedded.data_folder import default_folder, redis_of

    if data is not None or database_url() is None:
        return redis_of(data or default_folder())
    return redis_url()


def resolve_database(data: Path | None) -> "DatabaseAddress":
    """The database of the `up` that runs in the data folder if one is named, else DATABASE_URL,
    else that of the default data folder. Raises CommandFailed or BadSettings."""
    from cli.addresses import DatabaseAddress, database_schema, database_url
    from cli.embedded.data_folder import database_of, default_folder, running_up

    address = database_url()
    if data is not None or address is None:
        address = database_of(data or default_folder())
    elif sys.stderr.isatty() and running_up(default_folder()) is not None:
        print_status("This is the database of DATABASE_URL; `--data .data` names that of `up`.")
    return DatabaseAddress(address, database_schema())
