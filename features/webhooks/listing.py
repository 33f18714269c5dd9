"""Endpoints of webhooks and their deliveries, as commands change and show them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from cli.errors import RequestRefused
from cli.output import clean, fitted_table, print_status
from features.operator.audit_entries import operator
from features.operator.rows import fact
from features.tenants.project_listing import find_project
from features.webhooks import queries as statements
from features.webhooks import service
from features.webhooks.events import EventType, event_id
from features.webhooks.service import EndpointFields, EndpointProject
from features.webhooks.service import public_id as endpoint_id
from models.config.settings import Settings
from models.db.database import Connection, fetch
from models.egress import EgressPolicy, EgressRefused
from models.ids import EVENT, WEBHOOK_ENDPOINT
from models.projects.policy import ProjectPolicy
from models.secrets import NoKey, Sealer, parse_keys
from models.time_text import format_time

_SHORT_ENDPOINT_ID = len("whe_") + 16


@dataclass(frozen=True, slots=True)
class ShownEndpoint:
    """An endpoint, without its secrets."""

    id: str
    project: str
    name: str
    url: str
    types: list[str]
    """of events; empty: all"""
    created_at: datetime
    state: str
    """`enabled`, `failing` or `disabled`"""
    reason: str | None
    """why it is disabled"""
    failures: int
    failing_since: datetime | None
    waiting: int

    @classmethod
    def from_row(cls, row: statements.Endpoint) -> "ShownEndpoint":
        """The endpoint of a row."""
        return fact(cls, row, id=endpoint_id(row.id), reason=row.disabled_reason)


@dataclass(frozen=True, slots=True)
class ShownDelivery:
    """A delivery."""

    event: str
    endpoint: str
    type: str
    object: str
    created_at: datetime
    state: str
    """`delivered`, `waiting` or `failed`"""
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    last_status: int | None
    last_error: str | None

    @classmethod
    def from_row(cls, row: statements.ListedDelivery) -> "ShownDelivery":
        """The delivery of a row."""
        return fact(
            cls,
            row,
            event=event_id(row.event_id),
            endpoint=endpoint_id(row.endpoint_id),
            object=row.object_id,
        )


@dataclass(frozen=True, slots=True)
class NewSecret:
    """What is shown once: an endpoint and its signing secret."""

    id: str
    secret: str


def sealer_of(secret_keys: str | None) -> Sealer:
    """The sealer of the setting `secret_keys`."""
    return Sealer(parse_keys(secret_keys or ""))


async def create(
    database: Connection,
    sealer: Sealer,
    settings: Settings,
    project_name: str,
    fields: EndpointFields,
) -> NewSecret:
    """Makes an endpoint. Raises RequestRefused."""
    _require_types(fields.types or ())
    row = await find_project(database, project_name)
    project = EndpointProject(row.id, row.name, ProjectPolicy.from_json(row.policy).egress)
    egress, most = EgressPolicy(settings.egress), settings.webhooks.endpoints
    with _refusals(fields.url):
        made = await service.create(database, project, sealer, egress, fields, most, operator())
    if made is None:
        raise RequestRefused(
            f"the project {project.name} is deleted, or has {most} endpoints already;"
            " `backburner webhooks delete` makes room"
        )
    return NewSecret(endpoint_id(made.endpoint), made.secret)


def _require_types(types: Sequence[str]) -> None:
    unknown = [name for name in types if name not in list(EventType)]
    if unknown:
        known = ", ".join(EventType)
        raise RequestRefused(f"there is no event {unknown[0]}; there are {known}")


async def list_endpoints(database: Connection, project: str | None = None) -> list[ShownEndpoint]:
    """All endpoints, or those of one project."""
    rows = await fetch(database, statements.LIST_ENDPOINTS, {"project": project})
    return [ShownEndpoint.from_row(row) for row in rows]


async def rotate(database: Connection, sealer: Sealer, name: str, overlap: timedelta) -> NewSecret:
    """Gives an endpoint a new secret. For `overlap` deliveries are signed with the old one too, if
    it can be opened. Raises RequestRefused."""
    endpoint = await _find(database, name)
    with _refusals():
        made = await service.rotate(database, sealer, endpoint, overlap, operator())
    if made is None:
        raise _no_endpoint(name)
    if overlap and not made.keeps_old:
        print_status(
            "backburner: deliveries are signed with the new secret only: no key of "
            "BACKBURNER_SECRET_KEYS opens the old one"
        )
    return NewSecret(endpoint_id(made.endpoint), made.secret)


async def update(database: Connection, name: str, fields: EndpointFields) -> str:
    """Changes an endpoint, but not where it is; returns its id. Raises RequestRefused."""
    _require_types(fields.types or ())
    endpoint = await _find(database, name)
    await service.update(database, endpoint, fields, operator())
    return endpoint_id(endpoint.id)


async def delete(database: Connection, name: str) -> str:
    """Deletes an endpoint and its deliveries; returns its id. Raises RequestRefused."""
    endpoint = await _find(database, name)
    await service.delete(database, endpoint, operator())
    return endpoint_id(endpoint.id)


async def send_test(database: Connection, name: str, event_type: str | None) -> str:
    """Has a worker deliver an event about a response that does not exist; returns the event's id.
    `event_type`: None: one that the endpoint gets. Raises RequestRefused."""
    _require_types([] if event_type is None else [event_type])
    endpoint = await _find(database, name)
    sent = await service.send_test(database, endpoint, event_type, operator())
    if sent is None:
        raise RequestRefused("it is disabled; `backburner webhooks enable` enables it")
    return event_id(sent[0])


async def list_deliveries(
    database: Connection, name: str | None, limit: int, *, failed: bool
) -> list[ShownDelivery]:
    """The newest deliveries, of one endpoint or of all; with `failed` those that were not
    delivered. Raises RequestRefused."""
    values = {
        "endpoint": None if name is None else (await _find(database, name)).id,
        "failed": failed,
        "limit": limit,
    }
    rows = await fetch(database, statements.LIST_DELIVERIES, values)
    return [ShownDelivery.from_row(row) for row in rows]


async def resend(database: Connection, event: str) -> int:
    """Delivers an event again to all endpoints that it was for, with the same id; returns how many
    they are. Raises RequestRefused."""
    try:
        identifier = UUID(hex=event.removeprefix(f"{EVENT}_"))
    except ValueError:
        raise RequestRefused(f"{event} is no id of an event: evt_ and 32 digits") from None
    resent = await service.resend(database, identifier, None, operator())
    if not resent:
        raise RequestRefused(f"there is no event {event}; `webhooks deliveries` lists them")
    return resent


async def _find(database: Connection, name: str) -> statements.Endpoint:
    """The endpoint with this id, or the beginning of one. Raises RequestRefused."""
    digits = name.removeprefix(f"{WEBHOOK_ENDPOINT}_").lower()
    rows = await fetch(database, statements.LIST_ENDPOINTS, {"project": None})
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


def endpoints_table(facts: Sequence[ShownEndpoint]) -> str:
    """One line per endpoint."""
    if not facts:
        return "there is no endpoint; `backburner webhooks create URL` makes one"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                endpoint.id[:_SHORT_ENDPOINT_ID] if short else endpoint.id,
                clean(endpoint.project),
                clean(endpoint.url),
                " ".join(endpoint.types) or "all",
                str(endpoint.waiting),
                _state(endpoint),
            )
            for endpoint in facts
        ]

    return fitted_table(
        ("ENDPOINT", "PROJECT", "URL", "EVENTS", "WAITING", "STATE"), rows, ["URL", "EVENTS"]
    )


def _state(endpoint: ShownEndpoint) -> str:
    if endpoint.reason is not None:
        return f"disabled: {endpoint.reason}"
    if endpoint.failing_since is not None:
        return f"failing since {format_time(endpoint.failing_since)}, {endpoint.failures} tries"
    return endpoint.state


def deliveries_table(facts: Sequence[ShownDelivery]) -> str:
    """One line per delivery."""
    if not facts:
        return "there is no delivery"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                delivery.event,
                delivery.endpoint[:_SHORT_ENDPOINT_ID] if short else delivery.endpoint,
                delivery.type,
                delivery.object,
                format_time(delivery.created_at),
                str(delivery.attempts),
                delivery.state,
                _last_result(delivery),
            )
            for delivery in facts
        ]

    head = ("EVENT", "ENDPOINT", "TYPE", "OBJECT", "CREATED", "TRIES", "STATE", "LAST RESULT")
    return fitted_table(head, rows, ["OBJECT", "EVENT"])


def _last_result(delivery: ShownDelivery) -> str:
    if delivery.last_error is not None:
        return clean(delivery.last_error)
    return "" if delivery.last_status is None else f"HTTP {delivery.last_status}"
