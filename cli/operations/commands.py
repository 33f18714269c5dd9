"""The commands for a running deployment: look at responses and processes, and ask for something to happen to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.embedded.process import StartFailed
from cli.embedded.supervisor import print_status
from cli.options import EXIT_BAD_CONFIGURATION, Data, resolve_database_url
from cli.settings import NO_REDIS, child_settings
from models.config.configuration import BadSettings

if TYPE_CHECKING:
    from cli.operations.queries import Database

EXIT_REFUSED, EXIT_DATABASE_UNAVAILABLE, EXIT_PENDING = 1, 3, 4
"""Exit codes beside 0 (done) and 2 (usage); docs/operations.md explains them."""
_EXIT_CODES_HELP = (
    f"Exit codes: 0 done; {EXIT_REFUSED} no such thing, or refused; 2 wrong usage; {EXIT_DATABASE_UNAVAILABLE} the database cannot be asked; "
    f"{EXIT_PENDING} recorded, but not acted on within --wait."
)

app = typer.Typer()

Response = Annotated[
    str,
    typer.Argument(
        metavar="RESPONSE_ID", help="As clients see it, resp_..., or as logs write it: a UUID."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait for it to be acted on.")]


@contextmanager
def _connected(data: Any) -> Iterator["Database"]:
    """A connection; exits with one sentence when the database cannot be asked, or refuses what was asked."""
    import psycopg

    from cli.operations.queries import RequestRefused
    from models.db.database import connect_sync

    try:
        with connect_sync(
            child_settings(resolve_database_url(data), NO_REDIS), "operator"
        ) as connection:
            yield connection
    except RequestRefused as refused:
        print_status(f"backburner: {refused}")
        raise typer.Exit(EXIT_REFUSED) from refused
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad
    except StartFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(EXIT_DATABASE_UNAVAILABLE) from failure
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        print_status(
            "backburner: the database does not have this version's schema; `backburner migrate` brings it there"
        )
        raise typer.Exit(EXIT_DATABASE_UNAVAILABLE) from error
    except psycopg.Error as error:
        print_status(f"backburner: the database did not answer: {' '.join(str(error).split())}")
        raise typer.Exit(EXIT_DATABASE_UNAVAILABLE) from error


def _show(facts: Any, to_text: Callable[[Any], str], *, as_json: bool) -> None:
    from cli import report

    typer.echo(report.as_json(facts) if as_json else to_text(facts))


# Imports wait until a command needs them, as in cli/main.py.
@app.command(short_help="Tell one response's life as a timeline.", epilog=_EXIT_CODES_HELP)
def explain(response: Response, as_json: AsJson = False, data: Data = None) -> None:
    """Tell a response's life: created, queued, rung, claimed by whom, turns, flushes, hand-overs, deaths, ending."""
    from cli import report
    from cli.operations import queries

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
    """List open responses without progress, and why: nobody runs them, or their owner has had nothing new."""
    from cli import report
    from cli.operations import queries

    with _connected(data) as connection:
        _show(queries.stuck(connection, idle), report.stuck, as_json=as_json)


@app.command(short_help="List live and recently dead processes.", epilog=_EXIT_CODES_HELP)
def workers(
    since: Annotated[
        float, typer.Option(min=0, help="Show also those that died within this many seconds.")
    ] = 3600,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the processes with a lease, web processes too: kind, host, pid, lease left, responses they run; and who died, how."""
    from cli import report
    from cli.operations import queries

    with _connected(data) as connection:
        _show(queries.workers(connection, since), report.workers, as_json=as_json)


@app.command(short_help="Ask that a response go on elsewhere.", epilog=_EXIT_CODES_HELP)
def requeue(
    response: Response, wait: Wait = 10, as_json: AsJson = False, data: Data = None
) -> None:
    """Ask that a response be given back and go on elsewhere. What was said stays; the turn under way is repeated."""
    from cli import report
    from cli.operations import queries

    with _connected(data) as connection:
        done = queries.requeue(connection, response, wait)
        _show(done, report.request, as_json=as_json)
    raise typer.Exit(0 if done.acted else EXIT_PENDING)


@app.command(short_help="Ask that a response end as failed.", epilog=_EXIT_CODES_HELP)
def fail(response: Response, wait: Wait = 10, as_json: AsJson = False, data: Data = None) -> None:
    """Ask that a response end as failed, with the reason failed_by_operator. What was said stays."""
    from cli import report
    from cli.operations import queries

    with _connected(data) as connection:
        done = queries.fail(connection, response, wait)
        _show(done, report.request, as_json=as_json)
    raise typer.Exit(0 if done.acted else EXIT_PENDING)


@app.command(short_help="Ask a process to hand over and go.", epilog=_EXIT_CODES_HELP)
def drain(
    worker: Annotated[
        str,
        typer.Argument(
            help="A process's id, the beginning of one, or a host's name for all processes there."
        ),
    ],
    wait: Wait = 30,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Ask a process to stop claiming, hand over what it runs, and go, as on SIGTERM. A supervisor may start another in its place."""
    from cli import report
    from cli.operations import queries

    with _connected(data) as connection:
        done = queries.drain(connection, worker, wait)
        _show(done, report.drain_results, as_json=as_json)
    raise typer.Exit(0 if all(each.gone for each in done) else EXIT_PENDING)
