"""The commands for a running deployment: show responses and processes, and record requests for
them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CommandFailed, database_failure
from cli.options import AsJson, Data, exit_on_failure, resolve_database_url
from cli.output import as_json as to_json
from cli.output import print_status
from cli.settings import NO_REDIS, child_settings

if TYPE_CHECKING:
    from cli.operations.queries import Database

EXIT_REFUSED, EXIT_DATABASE_UNAVAILABLE, EXIT_PENDING = 1, 3, 4
"""Exit statuses besides 0 (done) and 2 (usage); docs/operations.md explains them."""
_EXIT_CODES_HELP = (
    f"Exit codes: 0 done; {EXIT_REFUSED} no such response or process, or refused; 2 wrong usage; "
    f"{EXIT_DATABASE_UNAVAILABLE} the database is unavailable; "
    f"{EXIT_PENDING} recorded, but not acted on within --wait."
)

app = typer.Typer()

Response = Annotated[
    str,
    typer.Argument(
        metavar="RESPONSE_ID", help="The id that clients see, resp_..., or that logs show: a UUID."
    ),
]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait until it is acted on.")]


@contextmanager
def _connected(data: Any) -> Iterator["Database"]:
    """A connection to the database.

    Ends the process with one sentence if the database is unavailable or the request is refused.
    """
    import psycopg

    from cli.operations.queries import RequestRefused
    from models.db.database import connect_sync

    with exit_on_failure(EXIT_DATABASE_UNAVAILABLE):
        try:
            settings = child_settings(resolve_database_url(data), NO_REDIS)
            with connect_sync(settings, "operator") as connection:
                yield connection
        except RequestRefused as refused:
            print_status(f"backburner: {refused}")
            raise typer.Exit(EXIT_REFUSED) from refused
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise CommandFailed(
                "the database does not have this version's schema; run `backburner migrate`"
            ) from error
        except psycopg.Error as error:
            raise database_failure(error) from error


def _show(result: Any, to_text: Callable[[Any], str], *, as_json: bool) -> None:
    typer.echo(to_json(result) if as_json else to_text(result))


# Commands import when they run, as in cli/main.py.
@app.command(short_help="Show one response's timeline.", epilog=_EXIT_CODES_HELP)
def explain(response: Response, as_json: AsJson = False, data: Data = None) -> None:
    """Show what happened to a response.

    Created, queued, enqueued, claimed, turns, flushes, hand-overs, deaths of workers, end.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        _show(queries.explain(connection, response), report.explanation, as_json=as_json)


@app.command(short_help="List open responses without progress, and why.", epilog=_EXIT_CODES_HELP)
def stuck(
    idle: Annotated[
        float,
        typer.Option(min=0, help="Seconds without progress from which a response counts as stuck."),
    ] = 30,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List open responses without progress, and why.

    Either no worker runs them, or their worker produced nothing.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        _show(queries.stuck(connection, idle), report.stuck, as_json=as_json)


@app.command(
    short_help="List live processes, and those that ended recently.", epilog=_EXIT_CODES_HELP
)
def workers(
    since: Annotated[
        float, typer.Option(min=0, help="Also show those that ended within this many seconds.")
    ] = 3600,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the processes with a lease, web processes too, and how processes ended.

    Shows kind, host, pid, the time left of the lease, and the number of responses that run.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        _show(queries.workers(connection, since), report.workers, as_json=as_json)


@app.command(short_help="Let another worker continue a response.", epilog=_EXIT_CODES_HELP)
def requeue(
    response: Response, wait: Wait = 10, as_json: AsJson = False, data: Data = None
) -> None:
    """Ask the owner to release a response, so that a worker claims it again.

    Output so far is kept; the current turn is repeated.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        result = queries.requeue(connection, response, wait)
        _show(result, report.request, as_json=as_json)
    raise typer.Exit(0 if result.acted else EXIT_PENDING)


@app.command(short_help="End a response as failed.", epilog=_EXIT_CODES_HELP)
def fail(response: Response, wait: Wait = 10, as_json: AsJson = False, data: Data = None) -> None:
    """Ask the owner to end a response as failed, reason failed_by_operator.

    Output so far is kept.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        result = queries.fail(connection, response, wait)
        _show(result, report.request, as_json=as_json)
    raise typer.Exit(0 if result.acted else EXIT_PENDING)


@app.command(short_help="Let a process hand over its responses and exit.", epilog=_EXIT_CODES_HELP)
def drain(
    worker: Annotated[
        str,
        typer.Argument(
            help="A process's id, the beginning of one, or a host name for all its processes."
        ),
    ],
    wait: Wait = 30,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Ask a process to stop claiming, hand over its responses and exit, as on SIGTERM.

    A supervisor may start another process in its place.
    """
    from cli.operations import queries, report

    with _connected(data) as connection:
        result = queries.drain(connection, worker, wait)
        _show(result, report.drain_results, as_json=as_json)
    raise typer.Exit(0 if all(process.gone for process in result) else EXIT_PENDING)
