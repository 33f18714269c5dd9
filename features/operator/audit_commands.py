"""The audit log, as an operator lists and exports it."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from cli.output import clean, fitted_table
from features.operator.connection import EXIT_CODES_HELP, Fields, run, show
from models.time_text import format_time

if TYPE_CHECKING:
    from models.db.connection import Connection
    from models.db.queries.audit import AuditRow

app = typer.Typer(help="Who did what: the audit log.", invoke_without_command=True)

_PAGE = 1_000
"""Entries that one statement of an export reads."""

Since = Annotated[
    timedelta | None, duration_option("How old an entry may be: 90s, 15m, 7d.", "any age")
]
Project = Annotated[str | None, typer.Option(help="The name of its project.")]
Action = Annotated[
    str | None,
    typer.Option(help="Its action, or the subject of it: response.delete, key, project, …"),
]


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which entries are wanted; None: any."""

    since: timedelta | None = None
    project: str | None = None
    action: str | None = None

    @property
    def values(self) -> dict[str, object]:
        """The parameters of the statements."""
        return {"since": self.since, "project": self.project, "action": self.action}


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
    wanted = _Filter(since, project, action)
    entries = run(data, lambda database: _newest(database, wanted, limit, before))
    show(entries, _table, _fields, as_json=as_json)


@app.command("export", epilog=EXIT_CODES_HELP)
def export_audit(
    since: Since = None, project: Project = None, action: Action = None, data: Data = None
) -> None:
    """Print all entries as JSON lines, the oldest first."""
    wanted = _Filter(since, project, action)

    async def export(database: "Connection") -> None:
        async for entry in _oldest_first(database, wanted):
            print(json.dumps(_fields(entry), ensure_ascii=False))

    run(data, export)


async def _newest(
    database: "Connection", wanted: _Filter, limit: int, before: str | None
) -> "list[AuditRow]":
    """The newest entries, at most `limit`; those before the entry `before` if it is given. Raises
    RequestRefused if there is no such entry."""
    from models.db.database import fetch
    from models.db.queries.audit import LIST

    at, last = datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1)
    if before is not None:
        position = await _find(database, before)
        at, last = position.at, position.id
    values = wanted.values | {"at": at, "id": last, "max_rows": limit}
    return await fetch(database, LIST, values)


async def _oldest_first(database: "Connection", wanted: _Filter) -> "AsyncIterator[AuditRow]":
    """All entries, the oldest first."""
    from models.db.database import fetch
    from models.db.queries.audit import EXPORT

    at, last = datetime.min.replace(tzinfo=UTC), UUID(int=0)
    while True:
        values = wanted.values | {"at": at, "id": last, "max_rows": _PAGE}
        rows = await fetch(database, EXPORT, values)
        for row in rows:
            yield row
        if len(rows) < _PAGE:
            return
        at, last = rows[-1].at, rows[-1].id


async def _find(database: "Connection", name: str) -> "AuditRow":
    from models.db.database import fetch
    from models.db.queries.audit import FIND

    try:
        rows = await fetch(database, FIND, {"id": UUID(name)})
    except ValueError:
        rows = []
    if not rows:
        raise RequestRefused(f"there is no entry {name[:40]} in the audit log")
    return rows[0]


def _fields(row: "AuditRow") -> Fields:
    """An entry for programs: without what it does not have."""
    fields = asdict(row) | {"at": format_time(row.at), "id": str(row.id)}
    if row.key_id is not None:
        fields["key_id"] = str(row.key_id)
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _table(entries: "Sequence[AuditRow]") -> str:
    """One line per entry."""

    def row(entry: "AuditRow", _short: bool) -> tuple[str, ...]:
        return (
            format_time(entry.at),
            _actor(entry),
            clean(entry.project or ""),
            entry.action,
            clean(entry.object or ""),
            entry.outcome,
            str(entry.id),
            " ".join(f"{name}={value}" for name, value in entry.details.items()),
        )

    head = ("TIME", "WHO", "PROJECT", "ACTION", "OBJECT", "OUTCOME", "ENTRY", "DETAILS")
    return fitted_table(entries, head, row, ["OBJECT"], empty="there is no such entry")


def _actor(entry: "AuditRow") -> str:
    """The operator, the key's first characters, or the address."""
    who = entry.os_user or entry.key_prefix
    place = f"from {entry.address}" if entry.address else entry.actor
    return clean(" ".join(filter(None, (who, place))))
