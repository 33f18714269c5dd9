"""The commands for the audit log."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, parse_duration
from features.operator.connection import EXIT_CODES_HELP, run, show

if TYPE_CHECKING:
    from models.db.connection import Connection

app = typer.Typer(help="Who did what: the audit log.", invoke_without_command=True)

Since = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How old an entry may be: 90s, 15m, 7d.",
        show_default="any age",
    ),
]
Project = Annotated[str | None, typer.Option(help="The name of its project.")]
Action = Annotated[
    str | None,
    typer.Option(help="Its action, or the subject of it: response.delete, key, project, …"),
]


# Commands import when they run, as in cli/main.py.
@app.callback(epilog=EXIT_CODES_HELP)
def list_audit(
    context: typer.Context,
    since: Since = None,
    project: Project = None,
    action: Action = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="Only entries older than this one: the next page."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="The most entries.")] = 50,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the entries of the audit log, the newest first."""
    if context.invoked_subcommand is not None:
        return
    from features.operator import audit_entries, report

    wanted = audit_entries.AuditFilter(since, project, action)
    entries = run(
        data, lambda database: audit_entries.list_entries(database, wanted, limit, before)
    )
    found = [audit_entries.as_object(entry) for entry in entries]
    show(found, report.audit, as_json=as_json)


@app.command("export", epilog=EXIT_CODES_HELP)
def export_audit(
    since: Since = None, project: Project = None, action: Action = None, data: Data = None
) -> None:
    """Print all entries as JSON lines, the oldest first."""
    import json

    from features.operator import audit_entries

    wanted = audit_entries.AuditFilter(since, project, action)

    async def export(database: "Connection") -> None:
        async for entry in audit_entries.export_entries(database, wanted):
            print(json.dumps(audit_entries.as_object(entry), ensure_ascii=False))

    run(data, export)
