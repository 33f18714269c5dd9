"""The connection of a command to the database, and how commands for it end."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cli.errors import CommandFailed, RequestRefused, database_failure
from cli.options import exit_on_failure, resolve_database
from cli.output import as_json as to_json
from cli.output import print_result, print_status

if TYPE_CHECKING:
    from models.db.connection import Connection

ResultT = TypeVar("ResultT")

EXIT_REFUSED, EXIT_DATABASE_UNAVAILABLE, EXIT_PENDING, EXIT_INTERRUPTED = 1, 3, 4, 130
"""Exit statuses besides 0 (done) and 2 (usage); docs/operations.md explains them."""
EXIT_CODES_HELP = (
    f"Exit codes: 0 done; {EXIT_REFUSED} no such response or process, or refused; 2 wrong usage; "
    f"{EXIT_DATABASE_UNAVAILABLE} the database is unavailable; "
    f"{EXIT_PENDING} recorded, but not acted on within --wait."
)


@contextmanager
def database_errors() -> Iterator[None]:
    """Ends the process with one sentence if the database is unavailable or the request is
    refused."""
    import psycopg

    with exit_on_failure(EXIT_DATABASE_UNAVAILABLE):
        try:
            yield
        except RequestRefused as refused:
            print_status(f"backburner: {refused}")
            raise typer.Exit(EXIT_REFUSED) from refused
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise CommandFailed(
                "the database does not have this version's schema; run `backburner migrate`"
            ) from error
        except psycopg.Error as error:
            raise database_failure(error) from error


def run(data: Path | None, work: Callable[["Connection"], Awaitable[ResultT]]) -> ResultT:
    """What `work` returns, with a connection to the database. Ends the process as `database_errors`
    does."""
    import asyncio

    from models.db.database import connect

    async def connected_work() -> ResultT:
        async with await connect(resolve_database(data), "operator") as connection:
            return await work(connection)

    with database_errors():
        return asyncio.run(connected_work())


def show(result: Any, to_text: Callable[[Any], str], *, as_json: bool) -> None:
    """Prints a result, for people or for programs."""
    print_result(to_json(result) if as_json else to_text(result))
