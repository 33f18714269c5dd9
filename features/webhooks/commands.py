"""The commands for webhooks."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, parse_duration
from cli.output import print_result, print_status
from features.operator.connection import EXIT_CODES_HELP, run, show

if TYPE_CHECKING:
    from pathlib import Path

    from features.webhooks.listing import NewSecret
    from models.db.connection import Connection
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
    from cli.settings import NO_DATABASE, NO_REDIS, child_settings
    from features.webhooks import listing as webhooks
    from features.webhooks.service import EndpointFields

    async def create(database: "Connection") -> "NewSecret":
        settings = child_settings(NO_DATABASE, NO_REDIS)
        fields = EndpointFields(name, url, types)
        return await webhooks.create(database, _sealer(data), settings, project, fields)

    show(run(data, create), lambda new: f"{new.id}\n{new.secret}", as_json=as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
def list_endpoints(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the endpoints: where, which events, whether they work, how much waits."""
    from features.webhooks import listing as webhooks

    found = run(data, lambda database: webhooks.list_endpoints(database, project))
    show(found, webhooks.endpoints_table, as_json=as_json)


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
    from features.webhooks import listing as webhooks

    found = run(
        data, lambda database: webhooks.list_deliveries(database, endpoint, limit, failed=failed)
    )
    show(found, webhooks.deliveries_table, as_json=as_json)


@app.command("test", epilog=EXIT_CODES_HELP)
def send_test(
    endpoint: Endpoint,
    event: Annotated[
        str | None, typer.Option(help="Which event.", show_default="one that it gets")
    ] = None,
    data: Data = None,
) -> None:
    """Deliver an event about a response that does not exist, and print the event's id."""
    from features.webhooks import listing as webhooks

    print_result(run(data, lambda database: webhooks.send_test(database, endpoint, event)))
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
    from features.webhooks import listing as webhooks

    made = run(data, lambda database: webhooks.rotate(database, _sealer(data), endpoint, overlap))
    show(made, lambda new: new.secret, as_json=as_json)


@app.command("disable", epilog=EXIT_CODES_HELP)
def disable(endpoint: Endpoint, data: Data = None) -> None:
    """Send an endpoint nothing more. What waits for it stays, events that follow are not kept."""
    _update(endpoint, data, "disabled", enabled=False)


@app.command("enable", epilog=EXIT_CODES_HELP)
def enable(endpoint: Endpoint, data: Data = None) -> None:
    """Let an endpoint get events again, what waits for it first."""
    _update(endpoint, data, "enabled", enabled=True)


@app.command("set", epilog=EXIT_CODES_HELP)
def set_events(endpoint: Endpoint, types: Events = None, data: Data = None) -> None:
    """Change which events an endpoint gets; without --event all."""
    _update(endpoint, data, "changed", types=types or ())


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete(endpoint: Endpoint, data: Data = None) -> None:
    """Delete an endpoint and its deliveries."""
    from features.webhooks import listing as webhooks

    deleted = run(data, lambda database: webhooks.delete(database, endpoint))
    print_result(f"{deleted} is deleted")


@app.command("resend", epilog=EXIT_CODES_HELP)
def resend(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of an event: evt_….")],
    data: Data = None,
) -> None:
    """Deliver an event again to all endpoints that it was for, with the same id."""
    from features.webhooks import listing as webhooks

    count = run(data, lambda database: webhooks.resend(database, event))
    print_result(f"{event} is delivered again to {count}")


def _update(
    endpoint: str,
    data: "Path | None",
    what: str,
    *,
    enabled: bool | None = None,
    types: Sequence[str] | None = None,
) -> None:
    from features.webhooks import listing as webhooks
    from features.webhooks.service import EndpointFields

    fields = EndpointFields(types=types, enabled=enabled)
    print_result(
        f"{run(data, lambda database: webhooks.update(database, endpoint, fields))} is {what}"
    )


def _sealer(data: "Path | None") -> "Sealer":
    from cli.settings import secret_keys_of
    from features.webhooks import listing as webhooks

    return webhooks.sealer_of(secret_keys_of(data))


COMMANDS = (("webhooks", app),)
"""The name of a group of commands, and the commands."""
