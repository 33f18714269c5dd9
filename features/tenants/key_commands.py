"""API keys, as an operator creates, lists, revokes and rotates them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from cli.output import GREEN, GREY, clean, fitted_table, paint, print_status
from features.operator.connection import EXIT_CODES_HELP, Fields, fields_of, operator, run, show
from features.operator.filter import id_prefix
from models.time_text import format_date, format_seconds, format_time

if TYPE_CHECKING:
    from models.db.connection import Connection
    from models.db.queries.organization import KeyDetails
    from models.projects.scopes import Scope

app = typer.Typer(help="API keys.", no_args_is_help=True)

_OVERLAP = timedelta(days=1)
_SHORT_ID = 18
"""Characters of an id in a narrow table."""
_KEY = "Its first characters, as `keys list` shows them, or its id, or the beginning of one."


# Commands import when they run, as in cli/main.py.
@app.command("create", epilog=EXIT_CODES_HELP)
def create_key(
    project: Annotated[
        str, typer.Option(help="The key's project (`backburner projects create`).")
    ] = "default",
    name: Annotated[str | None, typer.Option(help="What you call the key.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may do: responses, read, files, console or admin; several times for "
            "several.",
            show_default="responses",
        ),
    ] = None,
    expires: Annotated[timedelta | None, duration_option("It is valid for so long.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that it may use, or a pattern (`gpt-*`).", show_default="all"),
    ] = None,
    data: Data = None,
) -> None:
    """Print a new API key. Only its hash is stored, so it cannot be shown again."""
    from features.tenants import service
    from features.tenants.project_commands import find_project
    from models.keys import DEFAULT_PROJECT, KeyGrant

    grant = KeyGrant(
        scopes=_scopes(scope or ["responses"]),
        name=name,
        allowed_models=tuple(model) if model else None,
        lifetime=expires,
    )

    async def create(database: "Connection") -> str:
        actor = operator()
        async with database.transaction():
            if project == DEFAULT_PROJECT:
                found = await service.find_or_create_project(database, project, actor)
            else:
                found = await find_project(database, project)
            made = await service.create_key(database, found, grant, actor)
        if made is None:
            raise RequestRefused(f"the project {found.name} was deleted")
        return made[1]

    typer.echo(run(data, create))


@app.command("list", epilog=EXIT_CODES_HELP)
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only the keys of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the API keys: first characters, project, scopes, when made and last used, state."""
    from models.db.database import fetch
    from models.db.queries.organization import LIST_KEYS

    found = run(data, lambda database: fetch(database, LIST_KEYS, {"project": project}))
    show(found, _table, _fields, as_json=as_json)


@app.command("revoke", epilog=EXIT_CODES_HELP)
def revoke_key(
    names: Annotated[list[str], typer.Argument(metavar="KEY", help=_KEY)], data: Data = None
) -> None:
    """Make API keys invalid, for ever, within a second.

    Their open streams and WebSockets end. Background responses go on.
    """
    from features.tenants import service

    async def revoke(database: "Connection") -> None:
        for name in names:
            key = await find_unrevoked_key(database, name)
            await service.revoke_key(database, key, operator())
            typer.echo(f"{key.prefix}… of the project {key.project} is revoked")

    run(data, revoke)


@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_key(
    name: Annotated[str, typer.Argument(metavar="KEY", help=_KEY)],
    overlap: Annotated[
        timedelta, duration_option("The old key stays valid for so long.")
    ] = _OVERLAP,
    data: Data = None,
) -> None:
    """Print a new key that may do what an old one may do.

    It is valid at once; the old one stays valid for --overlap.
    """
    from features.tenants import service

    async def rotate(database: "Connection") -> "tuple[str, KeyDetails]":
        key = await find_unrevoked_key(database, name)
        if not key.is_valid:
            raise RequestRefused(f"the key {key.prefix}… is not valid any more; make another")
        return await service.rotate_key(database, key, overlap, operator()), key

    value, replaced = run(data, rotate)
    until = replaced.now + overlap
    if replaced.expires_at is not None:
        until = min(until, replaced.expires_at)
    typer.echo(value)
    print_status(f"{replaced.prefix}… stays valid until {format_time(until)}")


def _scopes(names: list[str]) -> "frozenset[Scope]":
    from models.projects.scopes import Scope, parse_scopes

    unknown = sorted(set(names) - {scope.value for scope in Scope})
    if unknown:
        known = ", ".join(scope.value for scope in Scope)
        raise typer.BadParameter(f"there is no scope {unknown[0]}; there are {known}")
    return parse_scopes(names)


async def find_unrevoked_key(database: "Connection", name: str) -> "KeyDetails":
    """The key with this id, or beginning of one, or these first characters, or this key. Raises
    RequestRefused if there is none, more than one, or it is revoked already."""
    from models.db.database import fetch
    from models.db.queries.organization import FIND_KEYS
    from models.keys import MAX_PREFIX_LENGTH, hash_key, key_prefix

    values = {"name": name, "hash": hash_key(name), "digits": id_prefix(name)}
    if len(name) > MAX_PREFIX_LENGTH:
        values["name"] = None  # the whole key, by its hash, or an id
    found = await fetch(database, FIND_KEYS, values)
    unrevoked = [key for key in found if key.revoked_at is None]
    shown = clean(key_prefix(name))
    revoked_at = found[0].revoked_at if found and not unrevoked else None
    if revoked_at is not None:
        raise RequestRefused(f"the key {shown} was revoked at {format_time(revoked_at)}")
    if not unrevoked:
        raise RequestRefused(f"there is no key {shown}; `backburner keys list` lists them")
    if len(unrevoked) > 1:
        raise RequestRefused(f"{shown} are the first characters of several keys; use an id")
    return unrevoked[0]


def _fields(key: "KeyDetails") -> Fields:
    return fields_of(
        key,
        "id prefix project name scopes allowed_models created_at last_used_at expires_at revoked_at"
        " state created_seconds unused_seconds",
        created_seconds=round(_seconds(key, key.created_at), 3),
        unused_seconds=key.last_used_at and round(_seconds(key, key.last_used_at), 3),
    )


def _table(keys: Sequence["KeyDetails"]) -> str:
    """One line per key."""

    def row(key: "KeyDetails", short: bool) -> tuple[str, ...]:
        return (
            f"{clean(key.prefix)}…",
            str(key.id)[:_SHORT_ID] if short else str(key.id),
            clean(key.project),
            clean(key.name or ""),
            ",".join(key.scopes),
            _ago(key, key.created_at) if short else format_date(key.created_at),
            _last_use(key, short=short),
            _validity(key, short=short),
        )

    head = ("KEY", "ID", "PROJECT", "NAME", "SCOPES", "CREATED", "LAST USED", "STATE")
    return fitted_table(keys, head, row, ["PROJECT", "NAME"], empty="there is no key")


def _last_use(key: "KeyDetails", *, short: bool) -> str:
    if key.last_used_at is None:
        return "never"
    return _ago(key, key.last_used_at) if short else format_date(key.last_used_at)


def _validity(key: "KeyDetails", *, short: bool) -> str:
    if key.state == "valid":
        until = "" if short or key.expires_at is None else f" until {format_date(key.expires_at)}"
        return paint(f"valid{until}", GREEN)
    if key.revoked_at is not None and not short:
        return paint(f"revoked {format_date(key.revoked_at)}", GREY)
    return paint(key.state, GREY)


def _ago(key: "KeyDetails", at: datetime) -> str:
    return f"{format_seconds(_seconds(key, at))} ago"


def _seconds(key: "KeyDetails", at: datetime) -> float:
    return (key.now - at).total_seconds()
