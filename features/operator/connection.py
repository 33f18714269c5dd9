"""How a command of an operator runs: its connection to the database, who runs it, what it shows of
rows, and how it ends."""

import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cli.addresses import resolve_database
from cli.errors import CommandFailed, RequestRefused, database_failure
from cli.options import exit_on_failure
from cli.output import as_json as to_json
from cli.output import print_result, print_status

if TYPE_CHECKING:
    from models.db.connection import Connection
    from models.db.queries.audit import Actor

ResultT = TypeVar("ResultT")
Fields = dict[str, Any]

EXIT_REFUSED, EXIT_DATABASE_UNAVAILABLE, EXIT_PENDING, EXIT_NOT_COMPLETED = 1, 3, 4, 5
EXIT_INTERRUPTED = 130
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


def operator() -> "Actor":
    """Who runs this command: the user of the operating system, and by whom `sudo` was called."""
    from models.db.queries.audit import Actor, ActorKind

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    caller = os.environ.get("SUDO_USER")  # noqa: TID251 - set by sudo
    name = f"{user} (sudo by {caller})" if caller and caller != user else user
    return Actor(ActorKind.OPERATOR, os_user=name, address=socket.gethostname())


def fields_of(row: object, names: str, **made: object) -> Fields:
    """What `--json` shows of a row: its attributes of these `names`, or what is `made` for a
    name."""
    return {name: made[name] if name in made else getattr(row, name) for name in names.split()}


def show(
    result: Any,
    to_text: Callable[[Any], str],
    to_fields: Callable[[Any], Fields] | None = None,
    *,
    as_json: bool,
) -> None:
    """Prints a row, or a list of them, for people or for programs. `to_fields`: what of each row
    is for programs; None: all."""
    if not as_json:
        print_result(to_text(result))
    elif to_fields is None:
        print_result(to_json(result))
    elif isinstance(result, list):
        print_result(to_json([to_fields(each) for each in result]))
    else:
        print_result(to_json(to_fields(result)))
