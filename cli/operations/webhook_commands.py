"""The commands for webhooks."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.operations.connection import EXIT_CODES_HELP, connected, show
from cli.options import AsJson, Data, parse_duration
from cli.output import print_result, print_status

if TYPE_CHECKING:
    from pathlib import Path

    from models.secrets import Sealer

app = typer.Typer(
    help="Webhooks: endpoints that get an event when a response has ended.", no_args_is_help=True
)

Endpoint = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="The id of an endpoint, or its beginning.")
]


Events = Annotated[
    list[str] | None,
    typer.Option("--event", help="An event; may be repeated.", show_default="all"),
]


# Commands import when they run, as in cli/main.py.
@app.command("create", epilog=EXIT_CODES_HELP)
def create_endpoint(
    url: Annotated[str, typer.Argument(help="Where events are sent: http:// or https://.")],
    project: Annotated[
        str, typer.Option(help="Project whose responses it gets events of.")
    ] = "default",
    types: Events = None,
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Make an endpoint, and print its id and its signing secret, which is not shown again."""
    from cli.operations import webhooks
    from cli.settings import NO_DATABASE, NO_REDIS, child_settings
    from models.egress import EgressPolicy

    with connected(data) as connection:
        settings = child_settings(NO_DATABASE, NO_REDIS)
        wanted = webhooks.NewEndpoint(url, project, name, types or ())
        made = webhooks.create(
            connection,
            _sealer(data),
            EgressPolicy(settings.egress),
            wanted,
            settings.webhooks.endpoints,
        )
        show(made, lambda new: f"{new.id}\n{new.secret}", as_json=as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
def list_endpoints(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the endpoints: where, which events, whether they work, how much waits."""
    from cli.operations import webhook_report, webhooks

    with connected(data) as connection:
        endpoints = webhooks.list_endpoints(connection, project)
        show(endpoints, webhook_report.endpoints, as_json=as_json)


@app.command("deliveries", epilog=EXIT_CODES_HELP)
def list_deliveries(
    endpoint: Annotated[
        str | None, typer.Argument(metavar="ENDPOINT", help="Only those of this endpoint.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what was not delivered.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="The most deliveries.")] = 50,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List deliveries, the newest first, with the result of the last try."""
    from cli.operations import webhook_report, webhooks

    with connected(data) as connection:
        deliveries = webhooks.list_deliveries(connection, endpoint, limit, failed=failed)
        show(deliveries, webhook_report.deliveries, as_json=as_json)


@app.command("test", epilog=EXIT_CODES_HELP)
def send_test(
    endpoint: Endpoint,
    event: Annotated[
        str | None, typer.Option(help="Which event.", show_default="one that it gets")
    ] = None,
    data: Data = None,
) -> None:
    """Deliver an event about a response that does not exist, and print the event's id."""
    from cli.operations import webhooks

    with connected(data) as connection:
        print_result(webhooks.send_test(connection, endpoint, event))
    print_status("A worker delivers it within seconds; `webhooks deliveries` shows the result.")


@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_secret(
    endpoint: Endpoint,
    overlap: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="How long deliveries are signed with the old secret too.",
        ),
    ] = timedelta(days=1),
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Give an endpoint a new signing secret, and print it."""
    from cli.operations import webhooks

    with connected(data) as connection:
        made = webhooks.rotate(connection, _sealer(data), endpoint, overlap)
        show(made, lambda new: new.secret, as_json=as_json)


@app.command("disable", epilog=EXIT_CODES_HELP)
def disable(endpoint: Endpoint, data: Data = None) -> None:
    """Send an endpoint nothing more. What waits for it stays, events that follow are not kept."""
    _set_enabled(endpoint, data, enabled=False)


@app.command("enable", epilog=EXIT_CODES_HELP)
def enable(endpoint: Endpoint, data: Data = None) -> None:
    """Let an endpoint get events again, what waits for it first."""
    _set_enabled(endpoint, data, enabled=True)


@app.command("set", epilog=EXIT_CODES_HELP)
def set_events(endpoint: Endpoint, types: Events = None, data: Data = None) -> None:
    """Change which events an endpoint gets; without --event all."""
    from cli.operations import webhooks

    with connected(data) as connection:
        print_result(f"{webhooks.set_types(connection, endpoint, types or ())} is changed")


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete(endpoint: Endpoint, data: Data = None) -> None:
    """Delete an endpoint and its deliveries."""
    from cli.operations import webhooks

    with connected(data) as connection:
        print_result(f"{webhooks.delete(connection, endpoint)} is deleted")


@app.command("resend", epilog=EXIT_CODES_HELP)
def resend(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of an event: evt_….")],
    data: Data = None,
) -> None:
    """Deliver an event again to all endpoints that it was for, with the same id."""
    from cli.operations import webhooks

    with connected(data) as connection:
        print_result(f"{event} is delivered again to {webhooks.resend(connection, event)}")


def _set_enabled(endpoint: str, data: "Path | None", *, enabled: bool) -> None:
    from cli.operations import webhooks

    with connected(data) as connection:
        changed = webhooks.set_enabled(connection, endpoint, enabled=enabled)
        print_result(f"{changed} is {'enabled' if enabled else 'disabled'}")


def _sealer(data: "Path | None") -> "Sealer":
    from cli.operations import webhooks

    return webhooks.sealer_of(webhooks.secret_keys_of(data))
