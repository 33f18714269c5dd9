"""Options that several commands have, and how a command ends when it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.embedded.data_folder import default_folder, embedded_database
from cli.errors import CommandFailed
from cli.output import print_status
from cli.settings import NO_REDIS, child_settings, read_settings, secret_value
from models.config.configuration import BadSettings

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
    try:
        yield
    except CommandFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(status) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad


def resolve_database_url(data: Path | None) -> str:
    """DATABASE_URL, else the database that `up` runs in the data folder. Raises CommandFailed."""
    address = secret_value(read_settings().database_url)
    return (
        child_settings(address, NO_REDIS).dsn
        if address
        else embedded_database(data or default_folder())
    )
