"""What the commands that speak to the database have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.embedded.data_folder import default_folder, embedded_database
from cli.embedded.process import StartFailed
from cli.embedded.supervisor import say
from cli.settings import NO_REDIS, checked, plain, read_settings
from models.config.configuration import BadSettings

UNCONFIGURED = 2
"""The exit status where `backburner.toml` makes no sense."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of databases, credentials and logs.", show_default=".data in the checkout"
    ),
]


@contextmanager
def failures_in_one_sentence() -> Iterator[None]:
    """Exit 1 with the sentence instead of a traceback, 2 with a line for each mistake in `backburner.toml`; what is not foreseen keeps its
    traceback."""
    try:
        yield
    except StartFailed as failure:
        say(f"backburner: {failure}")
        raise typer.Exit(1) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            say(f"backburner: {mistake}")
        raise typer.Exit(UNCONFIGURED) from bad


def database(data: Path | None) -> str:
    """DATABASE_URL, else the address of the database that `up` runs in the data folder. Raises StartFailed where there is neither."""
    given = plain(read_settings().database_url)
    return checked(given, NO_REDIS).dsn if given else embedded_database(data or default_folder())
