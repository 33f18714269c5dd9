"""The endpoints of webhooks, what was and is to be delivered to them, and the form that makes one.
Its signing secret is shown once."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.notice import Notice
from features.console.page import (
    Change,
    Page,
    PageError,
    Problem,
    Visit,
    choice,
    confirmed,
    not_found,
    read_list,
)
from features.webhooks import queries as statements
from features.webhooks import service
from features.webhooks.events import EventType, event_id
from features.webhooks.service import EndpointFields, EndpointProject
from features.webhooks.service import public_id as _endpoint_id
from models.db.arrays import Uuids
from models.db.database import Connection, Pool, fetch_idempotent, find_by_id
from models.db.queries.organization import FIND_PROJECTS, LIST_PROJECTS
from models.egress import EgressRefused
from models.ids import EVENT, WEBHOOK_ENDPOINT, parse_admin_id
from models.projects.policy import ProjectPolicy
from models.secrets import NoKey
from models.time_text import format_seconds
from web.state import AppState

_MAX_NAME = 200
"""Characters, as in the API."""
_LISTED_PROJECTS = 200
"""Projects that the form offers; any other can be typed."""


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What the form has."""

    project: str = "default"
    name: str = ""
    url: str = ""
    types: tuple[str, ...] = ()
    """of events; empty: all"""

    @classmethod
    def from_fields(cls, fields: QueryParams) -> "NewEndpoint":
        """Of a form that was sent, or of the address of the page."""
        texts = {
            name: fields.get(name, default).strip()
            for name, default in (("project", "default"), ("name", ""), ("url", ""))
        }
        return cls(**texts, types=tuple(fields.getlist("type")))


async def show_form(visit: Visit) -> Response:
    """The empty form."""
    visit.require_operator()
    return await _form(visit, NewEndpoint.from_fields(visit.query))


async def make(visit: Visit) -> Response:
    """Makes the endpoint, and shows its secret; or the form again, with what is wrong."""
    wanted = NewEndpoint.from_fields(await visit.form(visit.user.token))
    try:
        made = await _make(visit, wanted)
    except PageError as mistake:
        return await _form(visit, wanted, mistake)
    return visit.page(
        "webhook_made.html",
        wanted=wanted,
        public_id=service.public_id(made.endpoint),
        secret=made.secret,
    )


async def _form(visit: Visit, wanted: NewEndpoint, mistake: PageError | None = None) -> Response:
    values = {"include_archived": False, "after": None, "max_rows": _LISTED_PROJECTS}
    projects = await fetch_idempotent(visit.pool, LIST_PROJECTS, values)
    return visit.page(
        "webhook_form.html",
        status=200 if mistake is None else mistake.status,
        wanted=wanted,
        mistake=mistake,
        projects=[project.name for project in projects],
        types=[event.value for event in EventType],
        max_name=_MAX_NAME,
    )


async def _make(visit: Visit, wanted: NewEndpoint) -> service.SigningSecret:
    """Raises PageError (400, 409) with what is wrong."""
    fields = EndpointFields(wanted.name, wanted.url, _types(wanted))
    if len(wanted.name) > _MAX_NAME or not wanted.name.isprintable():
        raise PageError(400, "No name", f"A name has at most {_MAX_NAME} characters of one line.")
    project, most = await _project(visit, wanted.project), visit.state.settings.webhooks.endpoints
    sealer, egress = visit.state.sealer, visit.state.egress
    try:
        async with visit.pool.connection() as connection:
            made = await service.create(
                connection, project, sealer, egress, fields, most, visit.actor
            )
    except EgressRefused as refusal:
        raise PageError(
            400,
            "Not reachable",
            f"The URL may not be reached: {refusal}. BACKBURNER_EGRESS__ALLOW names exceptions.",
        ) from None
    except NoKey:
        raise PageError(
            409,
            "No sealing key",
            "A signing secret is stored sealed, and there is no key: set BACKBURNER_SECRET_KEYS.",
        ) from None
    if made is None:
        raise PageError(409, "Too many", f"The project has {most} endpoints, or is archived.")
    return made


def _types(wanted: NewEndpoint) -> tuple[str, ...]:
    """All that can be chosen are all: also those of later releases."""
    known = [event.value for event in EventType]
    for name in wanted.types:
        if name not in known:
            raise PageError(400, "No such event", f"There are {', '.join(known)}.")
    return () if set(wanted.types) == set(known) else wanted.types


async def _project(visit: Visit, name: str) -> EndpointProject:
    rows = await fetch_idempotent(visit.pool, FIND_PROJECTS, {"name": name, "digits": None})
    for row in rows:
        if row.name == name and row.archived_at is None:
            egress = ProjectPolicy.from_json(row.policy).egress
            return EndpointProject(row.id, row.name, egress)
    raise PageError(400, "No such project", f"There is no project {name[:100]}.")


COUNTED = 200
"""The newest deliveries of an endpoint that are counted in the list."""
_LOOKED_AT = 10_000
"""The newest deliveries among which those in a state are searched."""
_OLD_DELIVERY = 3600.0
"""Seconds after which an event that waits for its endpoint is a problem."""
_STATES = ("waiting", "delivered", "failed")
_MEANINGS = {
    "enable": "Events that wait are delivered, and new ones from now on.",
    "disable": "Nothing is delivered to it, and new events are not kept for it, until it is "
    "enabled again.",
}


async def show_list(visit: Visit) -> Response:
    """The endpoints, the newest first."""
    project, is_failing = visit.text("project"), visit.query.get("failing") == "1"
    endpoints = await read_list(
        visit,
        statements.NEWEST_ENDPOINTS,
        {"project": project, "failing": is_failing},
        lambda row: _endpoint_id(row.id),
        partial(parse_admin_id, WEBHOOK_ENDPOINT),
    )
    return visit.page(
        "webhooks.html",
        endpoints=endpoints,
        counts=await _counts(visit.pool, [row.id for _, row in endpoints.rows]),
        project=project,
        is_failing=is_failing,
        counted=COUNTED,
    )


async def show(visit: Visit) -> Response:
    """One endpoint and its deliveries."""
    endpoint = await _endpoint(visit, visit.request.path_params["id"])
    state = choice(visit.query, "state", _STATES) if visit.query.get("state") else None
    values = {
        "endpoint": endpoint.id,
        "state": state,
        "look_at": _LOOKED_AT if state else None,
    }
    return visit.page(
        "webhook.html",
        endpoint=endpoint,
        public_id=_endpoint_id(endpoint.id),
        deliveries=await read_list(
            visit,
            statements.DELIVERIES_PAGE,
            values,
            lambda row: event_id(row.event_id),
            partial(parse_admin_id, EVENT),
        ),
        state=state,
        states=[(each, each) for each in _STATES],
        looked_at=_LOOKED_AT,
        now=datetime.now(UTC),
    )


async def send_test(visit: Visit) -> Response:
    """Has a worker deliver a test event, next. The page of the endpoint shows the result."""
    fields = await visit.form(visit.user.token)
    endpoint = await _endpoint(visit, fields.get("id", ""))
    async with visit.pool.connection() as connection:
        sent = await service.send_test(connection, endpoint, None, visit.actor)
    if sent is None:
        raise PageError(409, "It is disabled", "Enable the endpoint first.")
    event, event_type = sent
    notice = Notice(
        f"A worker delivers a test event next: {event_id(event)} ({event_type}). Its result "
        "appears below."
    )
    return visit.done(f"/webhooks/{_endpoint_id(endpoint.id)}", notice)


async def problems(state: AppState) -> list[Problem]:
    """What the overview says of deliveries and endpoints."""
    [deliveries] = await fetch_idempotent(state.pool, statements.WEBHOOK_STATE, {})
    found = []
    if deliveries.oldest > _OLD_DELIVERY:
        waiting, oldest = deliveries.waiting, format_seconds(deliveries.oldest)
        found.append(Problem(f"{waiting} events wait for webhooks, the oldest for {oldest}."))
    counts = {"failing": deliveries.failing, "disabled": deliveries.disabled}
    if states := ", ".join(f"{count} {name}" for name, count in counts.items() if count):
        found.append(Problem(f"Webhook endpoints: {states}.", "/webhooks?failing=1"))
    return found


async def _change(visit: Visit, fields: QueryParams) -> Change:
    """Enables or disables an endpoint."""
    endpoint = await _endpoint(visit, fields.get("id", ""))
    action = choice(fields, "action", _MEANINGS)

    async def make(connection: Connection) -> None:
        fields_set = EndpointFields(enabled=action == "enable")
        await service.update(connection, endpoint, fields_set, visit.actor)

    return Change(
        title=f"{action.capitalize()} this endpoint?",
        meaning=_MEANINGS[action],
        label=action.capitalize(),
        back=f"/webhooks/{_endpoint_id(endpoint.id)}",
        make=make,
        done=f"The endpoint is {action}d.",
        is_harmless=action == "enable",
        facts=_facts(endpoint),
    )


async def _resend(visit: Visit, fields: QueryParams) -> Change:
    """Delivers an event again to one endpoint."""
    endpoint = await _endpoint(visit, fields.get("id", ""))
    delivery = await _delivery(visit, endpoint, fields.get("event", ""))
    event = f"{event_id(delivery.event_id)} ({delivery.type}), about {delivery.object_id}"

    async def make(connection: Connection) -> None:
        await service.resend(connection, delivery.event_id, endpoint, visit.actor)

    return Change(
        title="Deliver this event again?",
        meaning="It is sent next, with the same id, so that the receiver can recognise it. A "
        "pause of the endpoint ends.",
        label="Deliver again",
        back=f"/webhooks/{_endpoint_id(endpoint.id)}",
        make=make,
        done=f"{event_id(delivery.event_id)} is delivered again, next.",
        is_harmless=True,
        facts=[*_facts(endpoint), ("Event", event)],
    )


def _facts(endpoint: statements.Endpoint) -> list[tuple[str, str]]:
    return [("Endpoint", endpoint.url), ("Project", endpoint.project)]


async def _endpoint(visit: Visit, public_id: str) -> statements.Endpoint:
    identifier = parse_admin_id(WEBHOOK_ENDPOINT, public_id)
    found = await find_by_id(visit.pool, statements.ANY_ENDPOINT, identifier)
    if found is None or not visit.owns(found.project_id):
        raise not_found("endpoint")
    return found


async def _delivery(
    visit: Visit, endpoint: statements.Endpoint, event: str
) -> statements.ListedDelivery:
    identifier = parse_admin_id(EVENT, event)
    values = {"event_id": identifier, "endpoint": endpoint.id}
    rows = await fetch_idempotent(visit.pool, statements.DELIVERY_OF_EVENT, values)
    if not rows:
        raise not_found("event")
    return rows[0]


async def _counts(pool: Pool, endpoints: Sequence[UUID]) -> dict[UUID, statements.DeliveryCounts]:
    values = {"ids": Uuids(endpoints), "look_at": COUNTED}
    rows = await fetch_idempotent(pool, statements.DELIVERY_COUNTS, values)
    return {row.endpoint_id: row for row in rows}


PAGES = (
    Page("/webhooks", show_list, menu="Webhooks", is_by_project=True, roles=EVERYONE),
    Page("/webhooks/new", show_form),
    Page("/webhooks/new", make, method="POST"),
    Page("/webhooks/test", send_test, method="POST"),
    *confirmed("/webhooks/change", _change),
    *confirmed("/webhooks/resend", _resend),
    Page("/webhooks/{id}", show, roles=EVERYONE),
)
