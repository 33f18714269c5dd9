"""The operator's command line: `backburner`, or `./dev run` in a checkout."""

from typing import Annotated

import typer

from cli.configuration import commands as configuration
from cli.operations import commands as operations
from cli.options import Data, exit_on_failure, resolve_database_url

app = typer.Typer(
    help="Backburner: a self-hosted server for the OpenAI Responses API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.add_typer(configuration.config_app, name="config")
app.add_typer(configuration.upstream_app, name="upstream")
app.add_typer(operations.app)


# Commands import when they run, so that `--help` does not load a database client.
@app.command(short_help="Run a whole server on this machine.")
def up(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    data: Data = None,
    streams: Annotated[
        int, typer.Option(min=1, help="Responses that each worker runs at the same time.")
    ] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    upstream: Annotated[
        str | None,
        typer.Option(
            help="Base URL of an OpenAI-compatible server, with /v1.",
            show_default="BACKBURNER_UPSTREAM__BASE_URL, else a built-in demo",
        ),
    ] = None,
) -> None:
    """Start PostgreSQL, Redis, web and workers on this machine, and run them until Ctrl-C.

    When everything serves, standard output gets one line: ready <base url> <api key>. If
    DATABASE_URL or REDIS_URL is set, that server is used and none is started.
    """
    from cli.embedded.stack import Options
    from cli.embedded.up import up as run

    with exit_on_failure():
        run(
            Options(
                port=port, host=host, data=data, streams=streams, workers=workers, upstream=upstream
            )
        )


@app.command(short_help="Bring the database to this version's schema.")
def migrate(data: Data = None) -> None:
    """Bring the database of DATABASE_URL, else the one that `up` runs, to this version's schema."""
    from cli.database.migrate import migrate as run

    with exit_on_failure():
        run(resolve_database_url(data))


@app.command(short_help="A container's health check.")
def health(data: Data = None) -> None:
    """Exit 0 if a web or worker process of this host holds a lease: a container's health check."""
    from cli.database.health import live_kind

    with exit_on_failure():
        typer.echo(live_kind(resolve_database_url(data)))


@keys_app.command("create")
def create_key(
    project: Annotated[
        str, typer.Option(help="The key's project; it is made if it does not exist.")
    ] = "default",
    data: Data = None,
) -> None:
    """Print a new API key. Only its hash is stored, so it cannot be shown again."""
    from models import keys

    with exit_on_failure():
        typer.echo(keys.create(resolve_database_url(data), project))


if __name__ == "__main__":
    app()
