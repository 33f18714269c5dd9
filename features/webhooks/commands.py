"""Webhooks, as an operator makes, lists, tests and changes their endpoints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from cli.output import clean, fitted_table, print_result, print_status
from features.operator.connection import EXIT_CODES_HELP, Fields, fields_of, operator, run, show
from models.ids import EVENT, WEBHOOK_ENDPOINT, admin_id
from models.time_text import format_time

if TYPE_CHECKING:
    from features.webhooks.queries import Endpoint, ListedDelivery
    from features.webhooks.service import SigningSecret
    from models.db.connection import Connection
    from models.secrets import Sealer

app = typer.Typer(
    help="Webhooks: endpoints that get an event when a response has ended.", no_args_is_help=True
)

EndpointName = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="The id of an endpoint, or its beginning.")
]


Events = Annotated[
    list[str] | None, typer.Option("--event", help="An event; may be repeated.", show_default="all")
]
_SHORT_ID = len("whe_") + 16


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
    from cli.settings import deployment_settings
    from features.tenants.project_commands import find_project
    from features.webhooks import service
    from models.egress import EgressPolicy
    from models.projects.policy import ProjectPolicy

    async def create(database: "Connection") -> "SigningSecret":
        settings = deployment_settings(data)
        sealer, most = _sealer(data), settings.webhooks.endpoints
        _require_types(types or ())
        row = await find_project(database, project)
        owner = service.EndpointProject(
            row.id, row.name, ProjectPolicy.from_json(row.policy).egress
        )
        fields, egress = service.EndpointFields(name, url, types), EgressPolicy(settings.egress)
        with _refusals(url):
            made = await service.create(database, owner, sealer, egress, fields, most, operator())
        if made is None:
            raise RequestRefused(
                f"the project {row.name} is deleted, or has {most} endpoints already;"
                " `backburner webhooks delete` makes room"
            )
        return made

    made = run(data, create)
    show(made, lambda new: f"{_id(new.endpoint)}\n{new.secret}", _secret_fields, as_json=as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
def list_endpoints(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the endpoints: where, which events, whether they work, how much waits."""
    from features.webhooks.queries import LIST_ENDPOINTS
    from models.db.database import fetch

    found = run(data, lambda database: fetch(database, LIST_ENDPOINTS, {"project": project}))
    show(found, _endpoints_table, _endpoint_fields, as_json=as_json)


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
    from features.webhooks.queries import LIST_DELIVERIES
    from models.db.database import fetch

    async def deliveries(database: "Connection") -> "list[ListedDelivery]":
        only = None if endpoint is None else (await _find(database, endpoint)).id
        values = {"endpoint": only, "failed": failed, "limit": limit}
        return await fetch(database, LIST_DELIVERIES, values)

    show(run(data, deliveries), _deliveries_table, _delivery_fields, as_json=as_json)


@app.command("test", epilog=EXIT_CODES_HELP)
def send_test(
    endpoint: EndpointName,
    event: Annotated[
        str | None, typer.Option(help="Which event.", show_default="one that it gets")
    ] = None,
    data: Data = None,
) -> None:
    """Deliver an event about a response that does not exist, and print the event's id."""
    from features.webhooks import service

    async def send(database: "Connection") -> str:
        _require_types([] if event is None else [event])
        found = await _find(database, endpoint)
        sent = await service.send_test(database, found, event, operator())
        if sent is None:
            raise RequestRefused("it is disabled; `backburner webhooks enable` enables it")
        return admin_id(EVENT, sent[0])

    print_result(run(data, send))
    print_status("A worker delivers it within seconds; `webhooks deliveries` shows the result.")


@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_secret(
    endpoint: EndpointName,
    overlap: Annotated[
        timedelta, duration_option("How long deliveries are signed with the old secret too.")
    ] = timedelta(days=1),
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Give an endpoint a new signing secret, and print it."""
    from features.webhooks import service

    async def rotate(database: "Connection") -> "SigningSecret":
        found = await _find(database, endpoint)
        with _refusals():
            made = await service.rotate(database, _sealer(data), found, overlap, operator())
        if made is None:
            raise _no_endpoint(endpoint)
        if overlap and not made.keeps_old:
            print_status(
                "backburner: deliveries are signed with the new secret only: no key of "
                "BACKBURNER_SECRET_KEYS opens the old one"
            )
        return made

    show(run(data, rotate), lambda new: new.secret, _secret_fields, as_json=as_json)


@app.command("disable", epilog=EXIT_CODES_HELP)
def disable(endpoint: EndpointName, data: Data = None) -> None:
    """Send an endpoint nothing more. What waits for it stays, events that follow are not kept."""
    _update(endpoint, data, "disabled", enabled=False)


@app.command("enable", epilog=EXIT_CODES_HELP)
def enable(endpoint: EndpointName, data: Data = None) -> None:
    """Let an endpoint get events again, what waits for it first."""
    _update(endpoint, data, "enabled", enabled=True)


@app.command("set", epilog=EXIT_CODES_HELP)
def set_events(endpoint: EndpointName, types: Events = None, data: Data = None) -> None:
    """Change which events an endpoint gets; without --event all."""
    _update(endpoint, data, "changed", types=types or ())


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete(endpoint: EndpointName, data: Data = None) -> None:
    """Delete an endpoint and its deliveries."""
    from features.webhooks import service

    async def delete_found(database: "Connection") -> str:
        found = await _find(database, endpoint)
        await service.delete(database, found, operator())
        return _id(found.id)

    print_result(f"{run(data, delete_found)} is deleted")


@app.command("resend", epilog=EXIT_CODES_HELP)
def resend(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of an event: evt_….")],
    data: Data = None,
) -> None:
    """Deliver an event again to all endpoints that it was for, with the same id."""
    from features.webhooks import service

    async def resend_found(database: "Connection") -> int:
        try:
            identifier = UUID(hex=event.removeprefix(f"{EVENT}_"))
        except ValueError:
            raise RequestRefused(f"{event} is no id of an event: evt_ and 32 digits") from None
        resent = await service.resend(database, identifier, None, operator())
        if not resent:
            raise RequestRefused(f"there is no event {event}; `webhooks deliveries` lists them")
        return resent

    print_result(f"{event} is delivered again to {run(data, resend_found)}")


def _update(
    endpoint: str,
    data: Data,
    what: str,
    *,
    enabled: bool | None = None,
    types: Sequence[str] | None = None,
) -> None:
    from features.webhooks import service

    async def update(database: "Connection") -> str:
        _require_types(types or ())
        fields = service.EndpointFields(types=types, enabled=enabled)
        found = await _find(database, endpoint)
        await service.update(database, found, fields, operator())
        return _id(found.id)

    print_result(f"{run(data, update)} is {what}")


def _sealer(data: Data) -> "Sealer":
    from cli.settings import secret_keys_of
    from models.secrets import Sealer, parse_keys

    return Sealer(parse_keys(secret_keys_of(data) or ""))


def _require_types(types: Sequence[str]) -> None:
    from features.webhooks.events import EventType

    unknown = [name for name in types if name not in list(EventType)]
    if unknown:
        known = ", ".join(EventType)
        raise RequestRefused(f"there is no event {unknown[0]}; there are {known}")


async def _find(database: "Connection", name: str) -> "Endpoint":
    """The endpoint with this id, or the beginning of one. Raises RequestRefused."""
    from features.webhooks.queries import LIST_ENDPOINTS
    from models.db.database import fetch

    digits = name.removeprefix(f"{WEBHOOK_ENDPOINT}_").lower()
    rows = await fetch(database, LIST_ENDPOINTS, {"project": None})
    found = [row for row in rows if digits and row.id.hex.startswith(digits)]
    if not found:
        raise _no_endpoint(name)
    if len(found) > 1:
        raise RequestRefused(f"{name} is the beginning of several endpoints; write more of it")
    return found[0]


def _no_endpoint(name: str) -> RequestRefused:
    return RequestRefused(f"there is no endpoint {name}; `backburner webhooks list` lists them")


@contextmanager
def _refusals(url: str | None = None) -> Iterator[None]:
    """Raises RequestRefused for what the service refuses."""
    from models.egress import EgressRefused
    from models.secrets import NoKey

    try:
        yield
    except EgressRefused as refusal:
        raise RequestRefused(
            f"{url} may not be reached: {refusal}; BACKBURNER_EGRESS__ALLOW names exceptions"
        ) from refusal
    except NoKey as error:
        raise RequestRefused(
            "a signing secret is stored sealed, and there is no key: set BACKBURNER_SECRET_KEYS"
        ) from error


def _id(endpoint: UUID) -> str:
    return admin_id(WEBHOOK_ENDPOINT, endpoint)


def _secret_fields(made: "SigningSecret") -> Fields:
    return {"id": _id(made.endpoint), "secret": made.secret}


def _endpoint_fields(endpoint: "Endpoint") -> Fields:
    return fields_of(
        endpoint,
        "id project name url types created_at state reason failures failing_since waiting",
        id=_id(endpoint.id),
        reason=endpoint.disabled_reason,
    )


def _delivery_fields(delivery: "ListedDelivery") -> Fields:
    return fields_of(
        delivery,
        "event endpoint type object created_at state attempts next_attempt_at delivered_at"
        " last_status last_error",
        event=admin_id(EVENT, delivery.event_id),
        endpoint=_id(delivery.endpoint_id),
        object=delivery.object_id,
    )


def _endpoints_table(endpoints: "Sequence[Endpoint]") -> str:
    """One line per endpoint."""

    def row(endpoint: "Endpoint", short: bool) -> tuple[str, ...]:
        return (
            _id(endpoint.id)[: _SHORT_ID if short else None],
            clean(endpoint.project),
            clean(endpoint.url),
            " ".join(endpoint.types) or "all",
            str(endpoint.waiting),
            _state(endpoint),
        )

    head = ("ENDPOINT", "PROJECT", "URL", "EVENTS", "WAITING", "STATE")
    empty = "there is no endpoint; `backburner webhooks create URL` makes one"
    return fitted_table(endpoints, head, row, ["URL", "EVENTS"], empty=empty)


def _state(endpoint: "Endpoint") -> str:
    if endpoint.disabled_reason is not None:
        return f"disabled: {endpoint.disabled_reason}"
    if endpoint.failing_since is not None:
        return f"failing since {format_time(endpoint.failing_since)}, {endpoint.failures} tries"
    return endpoint.state


def _deliveries_table(deliveries: "Sequence[ListedDelivery]") -> str:
    """One line per delivery."""

    def row(delivery: "ListedDelivery", short: bool) -> tuple[str, ...]:
        return (
            admin_id(EVENT, delivery.event_id),
            _id(delivery.endpoint_id)[: _SHORT_ID if short else None],
            delivery.type,
            delivery.object_id,
            format_time(delivery.created_at),
            str(delivery.attempts),
            delivery.state,
            _last_result(delivery),
        )

    head = ("EVENT", "ENDPOINT", "TYPE", "OBJECT", "CREATED", "TRIES", "STATE", "LAST RESULT")
    return fitted_table(deliveries, head, row, ["OBJECT", "EVENT"], empty="there is no delivery")


def _last_result(delivery: "ListedDelivery") -> str:
    if delivery.last_error is not None:
        return clean(delivery.last_error)
    return "" if delivery.last_status is None else f"HTTP {delivery.last_status}"


COMMANDS = (("webhooks", app),)
"""The name of a group of commands, and the commands."""
