"""The commands for files."""

from typing import Annotated

import typer

from cli.options import AsJson, Data
from features.operator.connection import EXIT_CODES_HELP, run, show

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
    from features.files import listing as files

    found = run(data, lambda database: files.list_files(database, project, purpose, limit))
    show(found, files.as_table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_file(file: File, as_json: AsJson = False, data: Data = None) -> None:
    """Show a file, also one that is being uploaded or was deleted."""
    from features.files import listing as files

    found = run(data, lambda database: files.find(database, file))
    show(found, files.as_text, as_json=as_json)


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete_file(file: File, as_json: AsJson = False, data: Data = None) -> None:
    """Delete a file, as its project could: it is hidden at once."""
    from features.files import listing as files

    found = run(data, lambda database: files.delete(database, file))
    show(found, files.as_text, as_json=as_json)


COMMANDS = (("files", app),)
"""The name of a group of commands, and the commands."""
