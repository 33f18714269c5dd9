"""What the commands that speak to the database have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.embedded.data_folder import default_folder, embedded_database
from cli.embedded.process import StartFailed
from cli.embedded.supervisor import print_status
from cli.settings import NO_REDIS, child_settings, read_settings, secret_value
from models.config.configuration import BadSettings

EXIT_BAD_CONFIGURATION = 2
"""The exit status where `backburner.toml` makes no sense."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of databases, credentials and logs.", show_default=".data in the checkout"
    ),
]


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """Exit 1 with the sentence instead of a traceback, 2 with a line for each mistake in `backburner.toml`; what is not foreseen keeps its
    traceback."""
    try:
        yield
    except StartFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(1) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad


def resolve_database_url(data: Path | None) -> str:
    """DATABASE_URL, else the address of the database that `up` runs in the data folder. Raises StartFailed where there is neither."""
    given = secret_value(read_settings().database_url)
    return (
        child_settings(given, NO_REDIS).dsn
        if given
        else embedded_database(data or default_folder())
    )
