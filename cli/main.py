"""The operator's command line: `backburner`, or `./dev run` in a checkout."""

from typing import Annotated

import typer

from cli.addresses import resolve_database
from cli.configuration import commands as configuration
from cli.embedded import commands as embedded
from cli.options import Data, exit_on_failure
from models.features import feature_parts
from models.version import VERSION

app = typer.Typer(
    help="Backburner: a self-hosted server for the OpenAI Responses API.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(configuration.config_app, name="config")
app.add_typer(configuration.upstream_app, name="upstream")
app.add_typer(embedded.app)
for _part in feature_parts("commands"):
    for _name, _commands in _part.COMMANDS:
        app.add_typer(_commands, name=_name)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"backburner {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Backburner: a self-hosted server for the OpenAI Responses API."""
    del version  # its callback has ended the command


_Port = Annotated[
    int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
]
_Streams = Annotated[
    int, typer.Option(min=1, help="Responses that each worker runs at the same time.")
]
_Upstream = Annotated[
    str | None,
    typer.Option(
        help="Base URL of an OpenAI-compatible server, with /v1.",
        show_default="BACKBURNER_UPSTREAM__BASE_URL, else a built-in demo",
    ),
]
_DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="A PostgreSQL to use; `env`: that of DATABASE_URL. Its password stays off the "
        "command line this way.",
        show_default="one is started",
    ),
]
_RedisUrl = Annotated[
    str | None,
    typer.Option(help="A Redis to use; `env`: that of REDIS_URL.", show_default="one is started"),
]
_Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Return when it is ready; `down` stops it.")
]


# Commands import when they run, so that `--help` does not load a database client.
@app.command(short_help="Run a whole server on this machine.")
def up(
    port: _Port = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    data: Data = None,
    streams: _Streams = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    upstream: _Upstream = None,
    database_url: _DatabaseUrl = None,
    redis_url: _RedisUrl = None,
    detach: _Detach = False,
) -> None:
    """Start PostgreSQL, Redis, web and workers on this machine, and run them until Ctrl-C.

    When everything serves, standard output gets one line: ready <base url> <api key>.
    """
    from cli.embedded.stack import Options
    from cli.embedded.up import run_detached
    from cli.embedded.up import up as run

    options = Options(
        port=port,
        host=host,
        data=data,
        streams=streams,
        workers=workers,
        upstream=upstream,
        database_url=database_url,
        redis_url=redis_url,
    )
    with exit_on_failure():
        if detach:
            raise typer.Exit(run_detached(options))
        run(options)


@app.command(short_help="Bring the database to this version's schema.")
def migrate(data: Data = None) -> None:
    """Bring the database of DATABASE_URL, else the one that `up` runs, to this version's schema."""
    from cli.database.migrate import migrate as run

    with exit_on_failure():
        database = resolve_database(data)
        run(database.dsn, schema=database.database_schema)


@app.command(short_help="A container's health check.")
def health(data: Data = None) -> None:
    """Exit 0 if a web or worker process of this host holds a lease: a container's health check."""
    from cli.database.health import live_kind

    with exit_on_failure():
        database = resolve_database(data)
        typer.echo(live_kind(database.dsn, schema=database.database_schema))


@app.command(short_help="Print a statement as PostgreSQL receives it.")
def sql(
    name: Annotated[
        str | None, typer.Argument(help="Its name, as in read.LOG_PAGE.", show_default="all names")
    ] = None,
) -> None:
    """Print the SQL of a statement of models/db/queries, as PostgreSQL receives it."""
    from cli.database.statements import all_statements, sql_text

    with exit_on_failure():
        typer.echo("\n".join(sorted(all_statements())) if name is None else sql_text(name))


if __name__ == "__main__":
    app()
