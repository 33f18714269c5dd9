"""The commands for API keys."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, parse_duration
from cli.output import print_status
from features.operator.connection import EXIT_CODES_HELP, run, show
from models.time_text import format_time

if TYPE_CHECKING:
    from models.db.connection import Connection
    from models.projects.scopes import Scope

app = typer.Typer(help="API keys.", no_args_is_help=True)

_OVERLAP = timedelta(days=1)


# Commands import when they run, as in cli/main.py.
@app.command("create", epilog=EXIT_CODES_HELP)
def create_key(
    project: Annotated[
        str, typer.Option(help="The key's project; it is made if it does not exist.")
    ] = "default",
    name: Annotated[str | None, typer.Option(help="What you call the key.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may do: responses, read, files or admin; several times for several.",
            show_default="responses",
        ),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="It is valid for so long."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that it may use, or a pattern (`gpt-*`).", show_default="all"),
    ] = None,
    data: Data = None,
) -> None:
    """Print a new API key. Only its hash is stored, so it cannot be shown again."""
    from features.tenants import key_listing as keys
    from models.keys import KeyGrant

    grant = KeyGrant(
        scopes=_scopes(scope or ["responses"]),
        name=name,
        allowed_models=tuple(model) if model else None,
        lifetime=expires,
    )
    typer.echo(run(data, lambda database: keys.create_key(database, project, grant)))


@app.command("list", epilog=EXIT_CODES_HELP)
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only the keys of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the API keys: first characters, project, scopes, when made and last used, state."""
    from features.tenants import key_listing as keys

    found = run(data, lambda database: keys.list_keys(database, project))
    show(found, keys.as_table, as_json=as_json)


_Keys = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY", help="Its first eight characters, or its id, or the beginning of one."
    ),
]


@app.command("revoke", epilog=EXIT_CODES_HELP)
def revoke_key(names: _Keys, data: Data = None) -> None:
    """Make API keys invalid, for ever, within a second.

    Their open streams and WebSockets end. Background responses go on.
    """
    from features.tenants import key_listing as keys

    async def revoke(database: "Connection") -> None:
        for name in names:
            key = await keys.revoke_key(database, name)
            typer.echo(f"{key.prefix}… of the project {key.project} is revoked")

    run(data, revoke)


@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_key(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="Its first eight characters, or its id, or the beginning of one."
        ),
    ],
    overlap: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration, metavar="DURATION", help="The old key stays valid for so long."
        ),
    ] = _OVERLAP,
    data: Data = None,
) -> None:
    """Print a new key that may do what an old one may do.

    It is valid at once; the old one stays valid for --overlap.
    """
    from features.tenants import key_listing as keys

    rotated = run(data, lambda database: keys.rotate_key(database, name, overlap))
    typer.echo(rotated.key)
    print_status(f"{rotated.replaced.prefix}… stays valid until {format_time(rotated.valid_until)}")


def _scopes(names: list[str]) -> "frozenset[Scope]":
    from models.projects.scopes import Scope, parse_scopes

    unknown = sorted(set(names) - {scope.value for scope in Scope})
    if unknown:
        raise typer.BadParameter(f"there is no scope {unknown[0]}")
    return parse_scopes(names)
