"""Files, as an operator lists, shows and deletes them."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data
from cli.output import table
from features.operator.connection import EXIT_CODES_HELP, Fields, fields_of, operator, run, show
from models.ids import file_id, parse_file_id
from models.time_text import format_time

if TYPE_CHECKING:
    from features.files.queries import ListedFile
    from models.db.connection import Connection

app = typer.Typer(help="Files of projects.", no_args_is_help=True)

File = Annotated[str, typer.Argument(metavar="FILE_ID", help="The id of a file.")]


# Commands import when they run, as in cli/main.py.
@app.command("list", epilog=EXIT_CODES_HELP)
def list_files(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    purpose: Annotated[str | None, typer.Option(help="Only those of this purpose.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List files that clients see, the newest first."""
    from features.files.queries import LIST_ALL_FILES
    from features.operator.filter import LAST_ID
    from models.db.database import fetch

    values = {"project": project, "purpose": purpose, "before": LAST_ID, "max_rows": limit}
    found = run(data, lambda database: fetch(database, LIST_ALL_FILES, values))
    show(found, _table, _fields, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_file(file: File, as_json: AsJson = False, data: Data = None) -> None:
    """Show a file, also one that is being uploaded or was deleted."""
    show(run(data, lambda database: _find(database, file)), _text, _fields, as_json=as_json)


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete_file(file: File, as_json: AsJson = False, data: Data = None) -> None:
    """Delete a file, as its project could: it is hidden at once."""
    from features.files import service

    async def delete(database: "Connection") -> "ListedFile":
        row = await _find(database, file)
        if not await service.delete(database, row.project_id, row.id, operator(), row.project):
            raise RequestRefused(f"it cannot be deleted: it is {row.state}")
        return await _find(database, file)

    show(run(data, delete), _text, _fields, as_json=as_json)


async def _find(database: "Connection", name: str) -> "ListedFile":
    """The file with this id. Raises RequestRefused."""
    from features.files.queries import SHOW_FILE
    from models.db.database import find_by_id

    row = await find_by_id(database, SHOW_FILE, parse_file_id(name))
    if row is None:
        raise RequestRefused(f"there is no file {name}; `backburner files list` lists them")
    return row


def _fields(file: "ListedFile") -> Fields:
    return fields_of(
        file,
        "id project filename purpose state bytes media_type parts created_at expires_at",
        id=file_id(file.id),
    )


def _table(files: Sequence["ListedFile"]) -> str:
    """A line for each file."""
    if not files:
        return "There are no files."
    head = ("FILE", "PROJECT", "PURPOSE", "BYTES", "CREATED", "EXPIRES", "NAME")
    rows = [
        (
            file_id(file.id),
            file.project,
            file.purpose,
            str(file.bytes),
            format_time(file.created_at),
            _time(file.expires_at),
            file.filename,
        )
        for file in files
    ]
    return table(head, rows)


def _text(file: "ListedFile") -> str:
    """All of a file, for people."""
    return "\n".join(
        (
            f"{file_id(file.id)}  {file.state}",
            f"project  {file.project}",
            f"name     {file.filename}",
            f"purpose  {file.purpose}",
            f"type     {file.media_type or '-'}",
            f"bytes    {file.bytes} in {file.parts} objects",
            f"created  {format_time(file.created_at)}",
            f"expires  {_time(file.expires_at)}",
        )
    )


def _time(time: datetime | None) -> str:
    return "-" if time is None else format_time(time)


COMMANDS = (("files", app),)
"""The name of a group of commands, and the commands."""
