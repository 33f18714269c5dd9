"""The commands of operators: those for a running deployment, which explain responses and list and
drain processes, and the groups for responses, secrets and the audit log."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cli.addresses import resolve_database
from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from features.operator import audit_commands, response_commands, secret_commands
from features.operator.connection import (
    EXIT_CODES_HELP,
    EXIT_PENDING,
    database_errors,
    operator,
    run,
    show,
)
from features.operator.filter import id_prefix
from features.operator.response_commands import Response, Wait

if TYPE_CHECKING:
    from models.db.connection import Connection

app = typer.Typer()


# Commands import when they run, as in cli/main.py.
@app.command(short_help="Show one response's timeline.", epilog=EXIT_CODES_HELP)
def explain(response: Response, as_json: AsJson = False, data: Data = None) -> None:
    """Show what happened to a response.

    Created, queued, enqueued, claimed, turns, flushes, hand-overs, deaths of workers, end.
    """
    from features.operator import operations, report

    found = run(data, lambda database: operations.explain(database, response))
    show(found, report.explanation, report.explanation_fields, as_json=as_json)


@app.command(short_help="List open responses without progress, and why.", epilog=EXIT_CODES_HELP)
def stuck(
    idle: Annotated[
        timedelta,
        duration_option(
            "Time without progress from which a response counts as stuck: 90, 5m, 2h.", "30s"
        ),
    ] = timedelta(seconds=30),
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List open responses without progress, and why.

    Either no worker runs them, or their worker produced nothing.
    """
    from features.operator import operations, report

    found = run(data, lambda database: operations.stuck(database, idle))
    show(found, report.stuck, report.stuck_fields, as_json=as_json)


@app.command(
    short_help="List live processes, and those that ended recently.", epilog=EXIT_CODES_HELP
)
def workers(
    since: Annotated[
        timedelta, duration_option("Also show those that ended within this time: 90, 5m, 2h.", "1h")
    ] = timedelta(hours=1),
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the processes with a lease, web processes too, and how processes ended.

    Shows kind, host, pid, the time left of the lease, and the number of responses that run.
    """
    from features.operator import report
    from models.db.database import fetch
    from models.db.queries.operations import WORKERS

    found = run(data, lambda database: fetch(database, WORKERS, {"since": since}))
    show(found, report.workers, report.worker_fields, as_json=as_json)


@app.command("console", short_help="Print a link to the console.", epilog=EXIT_CODES_HELP)
def print_console_link(data: Data = None) -> None:
    """Print a link that logs you into the console once, within ten minutes.

    Of a server that `up` does not run, only what follows its address is printed.
    """
    from cli.embedded.data_folder import default_folder, running_up
    from cli.output import print_result
    from models.console_links import LOGIN_PATH, create_link
    from models.db.queries.audit import AuditEntry

    with database_errors():
        database = resolve_database(data)
        entry = AuditEntry(operator(), "console.link")
        token = create_link(database.dsn, database.database_schema, entry)
        up = running_up(data or default_folder())
        base_url = "" if up is None else (up.base_url or "").removesuffix("/v1")
        print_result(f"{base_url}{LOGIN_PATH}{token}")


@app.command(short_help="Let a process hand over its responses and exit.", epilog=EXIT_CODES_HELP)
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
    result = run(data, lambda database: _drain(database, worker, wait))
    show(result, _drain_text, as_json=as_json)
    raise typer.Exit(0 if all(process.gone for process in result) else EXIT_PENDING)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A process that was asked to exit. `gone`: it has exited."""

    id: UUID
    kind: str
    host: str
    pid: int
    gone: bool


async def _drain(database: "Connection", name: str, wait: float) -> list[DrainResult]:
    """Records that processes shall hand over and exit; waits up to `wait` seconds for their end.

    `name` is an id, the beginning of one, or a host name. Raises RequestRefused.
    """
    from features.operator import service
    from features.operator.operations import POLL_INTERVAL
    from models.db.database import fetch
    from models.db.queries import operations

    rows = await fetch(database, operations.FIND_WORKERS, {"name": name, "prefix": id_prefix(name)})
    processes = [row for row in rows if not row.dead]
    if not processes:
        raise RequestRefused(
            f"no live process has the id or host name {name}; `backburner workers` lists them"
        )
    if len(processes) > 1 and any(row.host != name for row in processes):
        raise RequestRefused(
            f"{name} is the beginning of {len(processes)} processes' ids; use a longer one"
        )
    await service.drain(database, name, processes, operator())
    ids, deadline = [row.id for row in processes], time.monotonic() + wait
    while left := await fetch(database, operations.STILL_RUNNING, {"ids": ids}):
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(POLL_INTERVAL)
    return [
        DrainResult(row.id, row.kind, row.host, row.pid, gone=row.id not in left)
        for row in processes
    ]


def _drain_text(drained: Sequence[DrainResult]) -> str:
    """One line per process."""
    from features.operator.diagnosis import process_text

    return "\n".join(
        f"{process.id}: {process_text(process.kind, process.pid, process.host)} "
        f"{'has exited' if process.gone else 'was asked to exit'}"
        for process in drained
    )


COMMANDS = (
    ("responses", response_commands.app),
    ("secrets", secret_commands.app),
    ("audit", audit_commands.app),
    (None, app),
)
"""The name of a group of commands, or None, and the commands."""
