"""The endpoints of webhooks, and what was and is to be delivered to them."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from starlette.responses import Response

from features.console.changes import Confirmation, ask, first, not_found
from features.console.errors import PageError
from features.console.page import Page
from features.console.paging import PAGE_SIZE, before, split, text_parameter
from features.console.visit import Visit
from features.webhooks import queries as statements
from features.webhooks import service
from features.webhooks.events import event_id
from features.webhooks.service import EndpointFields
from features.webhooks.service import public_id as _endpoint_id
from models.db.arrays import Uuids
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.ids import EVENT, WEBHOOK_ENDPOINT, parse_admin_id

COUNTED = 200
"""The newest deliveries of an endpoint that are counted in the list."""
_LOOKED_AT = 10_000
"""The newest deliveries among which those in a state are searched."""
_STATES = ("waiting", "delivered", "failed")
_parse_endpoint = partial(parse_admin_id, WEBHOOK_ENDPOINT)


async def show_list(visit: Visit) -> Response:
    """The endpoints, the newest first."""
    project, is_failing = text_parameter(visit, "project"), visit.query.get("failing") == "1"
    values = {
        "project": project,
        "failing": is_failing,
        "before": before(visit, _parse_endpoint),
        "max_rows": PAGE_SIZE + 1,
    }
    found = await fetch_idempotent(visit.pool, statements.NEWEST_ENDPOINTS, values)
    rows, last = split(found)
    counts = await _counts(visit.pool, rows)
    return visit.page(
        "webhooks.html",
        endpoints=[(_endpoint_id(row.id), row, counts.get(row.id)) for row in rows],
        next_before=None if last is None else _endpoint_id(last.id),
        is_first=visit.query.get("before") is None,
        project=project,
        is_failing=is_failing,
        counted=COUNTED,
    )


async def show(visit: Visit) -> Response:
    """One endpoint and its deliveries."""
    endpoint = await _endpoint(visit, visit.request.path_params["id"])
    state = text_parameter(visit, "state")
    if state is not None and state not in _STATES:
        raise PageError(400, "No such state", f"There are {', '.join(_STATES)}.")
    after = None
    if (text := visit.query.get("before")) is not None:
        after = parse_admin_id(EVENT, text)
        if after is None:
            raise PageError(400, "No such page", "The position of this page is no id of an event.")
    values = {
        "endpoint": endpoint.id,
        "state": state,
        "after": after,
        "look_at": _LOOKED_AT if state else None,
        "max_rows": PAGE_SIZE + 1,
    }
    found = await fetch_idempotent(visit.pool, statements.DELIVERIES_PAGE, values)
    rows, last = split(found)
    return visit.page(
        "webhook.html",
        endpoint=endpoint,
        public_id=_endpoint_id(endpoint.id),
        deliveries=[(event_id(row.event_id), row) for row in rows],
        next_before=None if last is None else event_id(last.event_id),
        is_first=after is None,
        state=state,
        states=_STATES,
        looked_at=_LOOKED_AT,
    )


async def confirm(visit: Visit) -> Response:
    """Asks whether an endpoint is to be enabled or disabled."""
    endpoint = await _endpoint(visit, visit.query.get("id", ""))
    action = _action(visit.query.get("action", ""))
    meanings = {
        "enable": "Events that wait are delivered, and new ones from now on.",
        "disable": "Nothing is delivered to it, and new events are not kept for it, until it is "
        "enabled again.",
    }
    public_id = _endpoint_id(endpoint.id)
    return ask(
        visit,
        Confirmation(
            title=f"{action.capitalize()} this endpoint?",
            meaning=meanings[action],
            label=action.capitalize(),
            path="/webhooks/change",
            back=f"/webhooks/{public_id}",
            fields=[("id", public_id), ("action", action)],
            is_harmless=action == "enable",
            facts=_facts(endpoint),
        ),
    )


async def set_enabled(visit: Visit) -> Response:
    """Enables or disables an endpoint."""
    fields = await visit.form(visit.user.token)
    endpoint = await _endpoint(visit, first(fields, "id"))
    action, public_id = _action(first(fields, "action")), _endpoint_id(endpoint.id)
    fields_set = EndpointFields(enabled=action == "enable")
    async with visit.pool.connection() as connection:
        await service.update(connection, endpoint, fields_set, visit.actor)
    return visit.redirect(f"/webhooks/{public_id}")


async def confirm_resend(visit: Visit) -> Response:
    """Asks whether an event is to be delivered again."""
    endpoint = await _endpoint(visit, visit.query.get("id", ""))
    delivery = await _delivery(visit, endpoint, visit.query.get("event", ""))
    public_id, event = _endpoint_id(endpoint.id), event_id(delivery.event_id)
    return ask(
        visit,
        Confirmation(
            title="Deliver this event again?",
            meaning="It is sent next, with the same id, so that the receiver can recognise it. A "
            "pause of the endpoint ends.",
            label="Deliver again",
            path="/webhooks/resend",
            back=f"/webhooks/{public_id}",
            fields=[("id", public_id), ("event", event)],
            is_harmless=True,
            facts=[
                *_facts(endpoint),
                ("Event", f"{event} ({delivery.type}), about {delivery.object_id}"),
            ],
        ),
    )


async def resend(visit: Visit) -> Response:
    """Delivers an event again to one endpoint."""
    fields = await visit.form(visit.user.token)
    endpoint = await _endpoint(visit, first(fields, "id"))
    delivery = await _delivery(visit, endpoint, first(fields, "event"))
    async with visit.pool.connection() as connection:
        await service.resend(connection, delivery.event_id, endpoint, visit.actor)
    return visit.redirect(f"/webhooks/{_endpoint_id(endpoint.id)}")


def _action(text: str) -> str:
    if text not in ("enable", "disable"):
        raise PageError(400, "No such action", "There are enable and disable.")
    return text


def _facts(endpoint: statements.Endpoint) -> list[tuple[str, str]]:
    return [("Endpoint", endpoint.url), ("Project", endpoint.project)]


async def _endpoint(visit: Visit, public_id: str) -> statements.Endpoint:
    found = await find_by_id(visit.pool, statements.ANY_ENDPOINT, _parse_endpoint(public_id))
    if found is None:
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


async def _counts(
    pool: Pool, endpoints: Sequence[statements.Endpoint]
) -> dict[UUID, statements.DeliveryCounts]:
    values = {"ids": Uuids([row.id for row in endpoints]), "look_at": COUNTED}
    rows = await fetch_idempotent(pool, statements.DELIVERY_COUNTS, values)
    return {row.endpoint_id: row for row in rows}


PAGES = (
    Page("/webhooks", show_list),
    Page("/webhooks/change", confirm),
    Page("/webhooks/change", set_enabled, method="POST"),
    Page("/webhooks/resend", confirm_resend),
    Page("/webhooks/resend", resend, method="POST"),
    Page("/webhooks/{id}", show),
)
MENU = (("/webhooks", "Webhooks"),)
