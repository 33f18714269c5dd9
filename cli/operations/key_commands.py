"""The commands for API keys."""

from typing import Annotated

import typer

from cli.operations.connection import EXIT_CODES_HELP, connected, show
from cli.options import AsJson, Data, exit_on_failure, resolve_database
from cli.output import print_status

app = typer.Typer(help="API keys.", no_args_is_help=True)


# Commands import when they run, as in cli/main.py.
@app.command("create")
def create_key(
    project: Annotated[
        str, typer.Option(help="The key's project; it is made if it does not exist.")
    ] = "default",
    data: Data = None,
) -> None:
    """Print a new API key. Only its hash is stored, so it cannot be shown again."""
    from models import keys

    with exit_on_failure():
        database = resolve_database(data)
        typer.echo(keys.create(database.dsn, project, database.database_schema))


@app.command("list", epilog=EXIT_CODES_HELP)
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only the keys of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the API keys: first characters, project, when made and last used, whether revoked."""
    from cli.operations import queries, report

    with connected(data) as connection:
        show(queries.list_keys(connection, project), report.keys, as_json=as_json)


@app.command("revoke", epilog=EXIT_CODES_HELP)
def revoke_key(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY", help="Its first eight characters, or its id, or the beginning of one."
        ),
    ],
    data: Data = None,
) -> None:
    """Make API keys invalid, for ever. Running responses of their projects go on."""
    from cli.operations import queries
    from models.keys import CACHE_SECONDS

    with connected(data) as connection:
        for name in names:
            key = queries.revoke_key(connection, name)
            typer.echo(f"{key.prefix}… of the project {key.project} is revoked")
    print_status(f"Web processes that have just used it accept it for up to {CACHE_SECONDS:g} s.")
