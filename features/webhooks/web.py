"""Webhooks in a web process: endpoints and deliveries as the API shows and changes them, in
OpenAI's shapes, and gauges of what waits."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily

from features.webhooks import queries as statements
from features.webhooks import service
from features.webhooks.events import EventType, secret_hint
from features.webhooks.queries import WEBHOOK_STATE, Endpoint, ListedDelivery, WebhookState
from features.webhooks.service import EndpointFields, EndpointProject, SigningSecret
from features.webhooks.service import public_id as _public
from models.config.feature_groups import WebhookSettings
from models.db.database import Connection, Pool, fetch, fetch_idempotent, require_by_id
from models.db.queries.audit import Actor
from models.egress import EgressPolicy, EgressRefused
from models.errors import InvalidRequest, NotFound
from models.ids import EVENT, WEBHOOK_ENDPOINT, admin_id, parse_admin_id
from models.load.budget import SharedBudget
from models.secrets import NoKey, Sealer
from web.counters import ScrapedRows
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.state import AppState, Feature

Json = dict[str, Any]

DELIVERY_STATES = ("waiting", "delivered", "failed")
_NOT_TRIED = "it was not tried yet: no worker runs, or another try has failed meanwhile"
_LOOK = 0.2
"""Seconds between two looks whether a test event was tried."""
_BEGIN = 3.0
"""Seconds within which a worker has begun a try."""


class WebhookEndpoints:
    """The endpoints of all projects. Each method raises NotFound for an endpoint that the project
    does not have."""

    def __init__(
        self, pool: Pool, sealer: Sealer, egress: EgressPolicy, settings: WebhookSettings
    ) -> None:
        self._pool = pool
        self._sealer = sealer
        self._egress = egress
        self._settings = settings

    async def page(self, project: EndpointProject, paging: Paging) -> Json:
        """A page, the newest first."""
        values = {
            "project": project.id,
            "after": paging.after_id(WEBHOOK_ENDPOINT),
            "max_rows": paging.row_limit,
        }
        rows = await fetch_idempotent(self._pool, statements.ENDPOINTS_PAGE, values)
        return paging.page_of([self._shown(row) for row in rows])

    async def show(self, project: EndpointProject, public_id: str) -> Json:
        """One endpoint."""
        return self._shown(await self._find(project, public_id))

    async def create(self, project: EndpointProject, fields: EndpointFields, actor: Actor) -> Json:
        """The new endpoint with its signing secret, which is shown here only. Raises
        InvalidRequest."""
        most = self._settings.endpoints
        with _refusals():
            async with self._pool.connection() as connection, connection.transaction():
                made = await service.create(
                    connection, project, self._sealer, self._egress, fields, most, actor
                )
                if made is None:
                    raise InvalidRequest(
                        f"The project has {most} webhook endpoints, or is archived."
                        " Delete one first.",
                        code="invalid_value",
                    )
                return await self._noted(connection, project, made)

    async def update(
        self, project: EndpointProject, public_id: str, fields: EndpointFields, actor: Actor
    ) -> Json:
        """Changes an endpoint. Raises InvalidRequest."""
        found = await self._find(project, public_id)
        with _refusals():
            if fields.url is not None:
                target = self._egress.of_project(project.egress).check_url(fields.url)
                fields = replace(fields, url=target.url)
        async with self._pool.connection() as connection:
            await service.update(connection, found, fields, actor)
        return await self.show(project, public_id)

    async def delete(self, project: EndpointProject, public_id: str, actor: Actor) -> Json:
        """Deletes an endpoint; its deliveries are gone with it."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection:
            await service.delete(connection, found, actor)
        return {"object": "webhook_endpoint.deleted", "id": _public(found.id), "deleted": True}

    async def rotate(
        self, project: EndpointProject, public_id: str, overlap: timedelta, actor: Actor
    ) -> Json:
        """The endpoint with a new signing secret. For `overlap` deliveries are signed with the old
        one too. Raises InvalidRequest."""
        found = await self._find(project, public_id)
        with _refusals():
            async with self._pool.connection() as connection, connection.transaction():
                made = await service.rotate(connection, self._sealer, found, overlap, actor)
                if made is None:
                    raise _not_found(public_id)
                return await self._noted(connection, project, made)

    async def _noted(
        self, connection: Connection, project: EndpointProject, made: SigningSecret
    ) -> Json:
        """The endpoint with its new secret, which a repeat of the request gets too."""
        shown = {"signing_secret": made.secret}
        await note_made(connection, _public(made.endpoint), shown)
        key = {"project": project.id, "id": made.endpoint}
        [row] = await fetch(connection, statements.FIND_ENDPOINT, key)
        return self._shown(row) | shown

    async def test(
        self, project: EndpointProject, public_id: str, event_type: str | None, actor: Actor
    ) -> Json:
        """Has a worker deliver an event about an object that does not exist, and waits for the
        result of the first try. Raises InvalidRequest for a disabled endpoint."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection:
            sent = await service.send_test(connection, found, event_type, actor)
        if sent is None:
            raise InvalidRequest(
                "The webhook endpoint is disabled; enable it first.", code="invalid_value"
            )
        event, sent_type = sent
        tried = await self._first_try(found, event)
        return {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": _public(found.id),
            "event_type": sent_type,
            "event_id": admin_id(EVENT, event),
            "status_code": None if tried is None else tried.last_status,
            "success": tried is not None and tried.state == "delivered",
            "error": _NOT_TRIED if tried is None else _test_error(tried),
        }

    async def _first_try(self, endpoint: Endpoint, event: UUID) -> ListedDelivery | None:
        """The delivery after its first try; None: it has none yet."""
        deadline = time.monotonic() + self._settings.timeout.total_seconds() + _BEGIN
        values = {"endpoint": endpoint.id, "event_id": event}
        while time.monotonic() < deadline:
            rows = await fetch_idempotent(self._pool, statements.DELIVERY_OF_EVENT, values)
            if rows and (rows[0].last_status is not None or rows[0].last_error is not None):
                return rows[0]
            await asyncio.sleep(_LOOK)
        return None

    async def deliveries(
        self, project: EndpointProject, public_id: str, state: str | None, paging: Paging
    ) -> Json:
        """A page, the newest first; `state`: only those in it."""
        values = {
            "endpoint": (await self._find(project, public_id)).id,
            "state": state,
            "after": paging.after_id(EVENT),
            "look_at": None,
            "max_rows": paging.row_limit,
        }
        rows = await fetch_idempotent(self._pool, statements.DELIVERIES_PAGE, values)
        return paging.page_of([_shown_delivery(row) for row in rows])

    async def resend(
        self, project: EndpointProject, public_id: str, event: str, actor: Actor
    ) -> Json:
        """Delivers an event again, with the same id. Raises NotFound for one that the endpoint did
        not get."""
        found = await self._find(project, public_id)
        event_id = parse_admin_id(EVENT, event)
        async with self._pool.connection() as connection, connection.transaction():
            if event_id is None or not await service.resend(connection, event_id, found, actor):
                raise NotFound(f"No delivery found with id '{event[:100]}'.")
            values = {"endpoint": found.id, "event_id": event_id}
            [row] = await fetch(connection, statements.DELIVERY_OF_EVENT, values)
        return _shown_delivery(row)

    async def _find(self, project: EndpointProject, public_id: str) -> Endpoint:
        found, absent = parse_admin_id(WEBHOOK_ENDPOINT, public_id), _not_found(public_id)
        query = statements.FIND_ENDPOINT
        return await require_by_id(self._pool, query, found, absent, project=project.id)

    def _shown(self, row: Endpoint) -> Json:
        signing_secrets = service.opened_secrets(self._sealer, row)
        return {
            "object": "webhook_endpoint",
            "id": _public(row.id),
            "name": row.name,
            "url": row.url,
            "event_types": row.types or [event.value for event in EventType],
            "created_at": _seconds(row.created_at),
            "updated_at": _seconds(row.updated_at),
            "signing_secret_hint": secret_hint(signing_secrets[0]) if signing_secrets else None,
            "status": row.state,
            "disabled_reason": row.disabled_reason,
            "failures": row.failures,
            "failing_since": _seconds(row.failing_since),
            "waiting": row.waiting,
        }


def _not_found(public_id: str) -> NotFound:
    return NotFound(f"No webhook endpoint found with id '{public_id[:100]}'.")


@contextmanager
def _refusals() -> Iterator[None]:
    """Raises InvalidRequest for what the service refuses."""
    try:
        yield
    except EgressRefused as refusal:
        raise InvalidRequest(
            f"Invalid 'url': {refusal}.", param="url", code="invalid_value"
        ) from None
    except NoKey:
        raise InvalidRequest(
            "Webhooks are not supported by this server: no sealing key is configured.",
            code="unsupported_parameter",
        ) from None


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _test_error(tried: ListedDelivery) -> str | None:
    """Why the endpoint has not accepted the event; None: it has."""
    if tried.state == "delivered" or tried.last_status is None:
        return tried.last_error
    redirect = "; redirects are not followed" if 300 <= tried.last_status < 400 else ""
    return f"answered with HTTP {tried.last_status}{redirect}"


def _shown_delivery(row: ListedDelivery) -> Json:
    return {
        "object": "webhook_endpoint.delivery",
        "id": admin_id(EVENT, row.event_id),
        "webhook_endpoint_id": _public(row.endpoint_id),
        "event_type": row.type,
        "data": {"id": row.object_id},
        "created_at": _seconds(row.created_at),
        "status": row.state,
        "attempts": row.attempts,
        "next_attempt_at": _seconds(row.next_attempt_at),
        "delivered_at": _seconds(row.delivered_at),
        "last_status_code": row.last_status,
        "last_error": row.last_error,
    }


_GAUGE_AGE = 5.0
"""Seconds for which the gauges count."""


def _families(rows: list[WebhookState]) -> list[GaugeMetricFamily]:
    state = rows[0] if rows else WebhookState(0, 0, 0, 0, 0.0)
    endpoints = GaugeMetricFamily(
        "backburner_webhook_endpoints", "Endpoints of webhooks by state.", labels=["state"]
    )
    for name, count in (
        ("enabled", state.enabled),
        ("failing", state.failing),
        ("disabled", state.disabled),
    ):
        endpoints.add_metric([name], count)
    waiting = GaugeMetricFamily(
        "backburner_webhooks_waiting",
        "Events that are to be delivered, by endpoint that gets them; not to disabled ones.",
        state.waiting,
    )
    oldest = GaugeMetricFamily(
        "backburner_webhooks_oldest_seconds",
        "Age in seconds of the oldest of these events.",
        max(0.0, state.oldest),
    )
    return [endpoints, waiting, oldest]


WEBHOOK_GAUGES = ScrapedRows(WEBHOOK_STATE, _GAUGE_AGE, _families)


class Webhooks(Feature):
    """The endpoints of all projects."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.endpoints = WebhookEndpoints(
            state.pool, state.sealer, state.egress, state.settings.webhooks
        )
        self.tests = SharedBudget("webhook tests", 64, 16)
        """Requests that wait for the first try of an event."""

    async def refresh_gauges(self) -> None:
        """Reads the figures if they are too old."""
        await WEBHOOK_GAUGES.refresh(self.state.pool)


FEATURE = Webhooks
