"""Webhook endpoints and deliveries as the API shows and changes them, in OpenAI's shapes.

A change and its entry in the audit log are one transaction. The tries are made by workers
(docs/webhooks.md).
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from models.config.groups import WebhookSettings
from models.db.arrays import Texts
from models.db.database import Connection, Pool, execute, fetch, fetch_idempotent
from models.db.queries import webhooks as statements
from models.db.queries.audit import RECORD, Actor, AuditEntry
from models.db.queries.webhooks import Endpoint, ListedDelivery
from models.egress import EgressPolicy
from models.errors import InvalidRequest, NotFound
from models.ids import EVENT, WEBHOOK_ENDPOINT, admin_id, new_uuid, parse_admin_id
from models.projects.egress import ProjectEgress
from models.secrets import NoKey, Sealed, Sealer, Unreadable
from models.signing_secrets import open_secrets, seal_secrets, secret_hint
from models.webhooks.events import TEST_OBJECT, EventType
from models.webhooks.signature import new_secret
from web.http.outbound_urls import require_fetchable
from web.http.params import Paging
from web.idempotency.creates import note_made

Json = dict[str, Any]

DELIVERY_STATES = ("waiting", "delivered", "failed")
_NOT_TRIED = "it was not tried yet: no worker runs, or another try has failed meanwhile"
_LOOK = 0.2
"""Seconds between two looks whether a test event was tried."""
_BEGIN = 3.0
"""Seconds within which a worker has begun a try."""


@dataclass(frozen=True, slots=True)
class EndpointProject:
    """The project whose endpoints a request names."""

    id: UUID
    name: str
    egress: ProjectEgress


@dataclass(frozen=True, slots=True)
class EndpointFields:
    """What a request sets of an endpoint. None: that stays."""

    name: str | None
    url: str | None
    types: list[str] | None
    """of events; empty: all"""
    enabled: bool | None = None


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
        made, secret = new_uuid(), new_secret()
        sealed = self._sealed(made, [secret])
        values = {
            "id": made,
            "project": project.id,
            "name": fields.name or "",
            "url": self._checked_url(project, fields.url or ""),
            "types": Texts(fields.types or []),
            "secret_key_id": sealed.key_id,
            "secrets": sealed.sealed,
            "most": self._settings.endpoints,
        }
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, statements.INSERT_ENDPOINT, values):
                raise InvalidRequest(
                    f"The project has {self._settings.endpoints} webhook endpoints, or is archived."
                    " Delete one first.",
                    code="invalid_value",
                )
            await _record(connection, actor, "create", made, project)
            await note_made(connection, _public(made), {"signing_secret": secret})
        return await self.show(project, _public(made)) | {"signing_secret": secret}

    async def update(
        self, project: EndpointProject, public_id: str, fields: EndpointFields, actor: Actor
    ) -> Json:
        """Changes an endpoint. Raises InvalidRequest."""
        found = await self._find(project, public_id)
        values = {
            "id": found.id,
            "name": fields.name,
            "url": None if fields.url is None else self._checked_url(project, fields.url),
            "types": None if fields.types is None else Texts(fields.types),
            "enabled": fields.enabled,
        }
        verbs = {None: "set", True: "enable", False: "disable"}
        async with self._pool.connection() as connection, connection.transaction():
            await execute(connection, statements.UPDATE_ENDPOINT, values)
            await _record(connection, actor, verbs[fields.enabled], found.id, project)
        return await self.show(project, public_id)

    async def delete(self, project: EndpointProject, public_id: str, actor: Actor) -> Json:
        """Deletes an endpoint; its deliveries are gone with it."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection, connection.transaction():
            await execute(connection, statements.DELETE_ENDPOINT, {"id": found.id})
            await _record(connection, actor, "delete", found.id, project)
        return {"object": "webhook_endpoint.deleted", "id": _public(found.id), "deleted": True}

    async def rotate(
        self, project: EndpointProject, public_id: str, overlap: timedelta, actor: Actor
    ) -> Json:
        """The endpoint with a new signing secret. For `overlap` deliveries are signed with the old
        one too. Raises InvalidRequest."""
        secret, values = new_secret(), self._key(project, public_id)
        async with self._pool.connection() as connection, connection.transaction():
            found = _only(await fetch(connection, statements.LOCK_ENDPOINT, values), public_id)
            kept = self._opened(found)[:1] if overlap else []
            sealed = self._sealed(found.id, [secret, *kept])
            new = {
                "id": found.id,
                "secret_key_id": sealed.key_id,
                "secrets": sealed.sealed,
                "overlap": overlap,
            }
            await execute(connection, statements.ROTATE_SECRET, new)
            await _record(connection, actor, "rotate", found.id, project)
            await note_made(connection, public_id, {"signing_secret": secret})
        return await self.show(project, public_id) | {"signing_secret": secret}

    async def test(
        self, project: EndpointProject, public_id: str, event_type: str | None, actor: Actor
    ) -> Json:
        """Has a worker deliver an event about an object that does not exist, and waits for the
        result of the first try. Raises InvalidRequest for a disabled endpoint."""
        found = await self._find(project, public_id)
        event, sent = (
            new_uuid(),
            event_type or next(iter(found.types), EventType.RESPONSE_COMPLETED),
        )
        values = {
            "id": new_uuid(),
            "endpoint": found.id,
            "event_id": event,
            "type": str(sent),
            "object_id": TEST_OBJECT,
        }
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, statements.INSERT_TEST_EVENT, values):
                raise InvalidRequest(
                    "The webhook endpoint is disabled; enable it first.", code="invalid_value"
                )
            await _record(connection, actor, "test", found.id, project)
        tried = await self._first_try(found, event)
        return {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": _public(found.id),
            "event_type": str(sent),
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
        values = {"endpoint": found.id, "event_id": parse_admin_id(EVENT, event)}
        async with self._pool.connection() as connection, connection.transaction():
            if values["event_id"] is None or not await fetch(connection, statements.RESEND, values):
                raise NotFound(f"No delivery found with id '{event[:100]}'.")
            await _record(connection, actor, "resend", found.id, project)
            [row] = await fetch(connection, statements.DELIVERY_OF_EVENT, values)
        return _shown_delivery(row)

    async def _find(self, project: EndpointProject, public_id: str) -> Endpoint:
        values = self._key(project, public_id)
        rows = await fetch_idempotent(self._pool, statements.FIND_ENDPOINT, values)
        return _only(rows, public_id)

    def _key(self, project: EndpointProject, public_id: str) -> Json:
        return {"project": project.id, "id": parse_admin_id(WEBHOOK_ENDPOINT, public_id)}

    def _checked_url(self, project: EndpointProject, url: str) -> str:
        """The normal form of a URL. Raises InvalidRequest."""
        egress = self._egress.of_project(project.egress)
        require_fetchable(egress, url, "url")
        return egress.check_url(url).url

    def _sealed(self, endpoint: UUID, signing_secrets: list[str]) -> Sealed:
        try:
            return seal_secrets(self._sealer, endpoint, signing_secrets)
        except NoKey:
            raise InvalidRequest(
                "Webhooks are not supported by this server: no sealing key is configured.",
                code="unsupported_parameter",
            ) from None

    def _opened(self, row: Endpoint) -> list[str]:
        """The signing secrets of an endpoint; none if their key is missing."""
        try:
            return open_secrets(self._sealer, row.id, Sealed(row.secret_key_id, row.secrets))
        except Unreadable:
            return []

    def _shown(self, row: Endpoint) -> Json:
        signing_secrets = self._opened(row)
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


async def _record(
    connection: Connection, actor: Actor, verb: str, endpoint: UUID, project: EndpointProject
) -> None:
    entry = AuditEntry(actor, f"webhook.{verb}", _public(endpoint), project=project.name)
    await execute(connection, RECORD, entry.values())


def _only(rows: list[Endpoint], public_id: str) -> Endpoint:
    if not rows:
        raise NotFound(f"No webhook endpoint found with id '{public_id[:100]}'.")
    return rows[0]


def _public(endpoint: UUID) -> str:
    return admin_id(WEBHOOK_ENDPOINT, endpoint)


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
