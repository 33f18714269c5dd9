"""What is done to endpoints of webhooks and to their deliveries. Each function is one transaction,
with its entry in the audit log. The tries are made by workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from features.audit import act, record
from features.webhooks import events
from features.webhooks import queries as statements
from features.webhooks.queries import Endpoint
from models.db.arrays import Texts
from models.db.database import Connection, execute, fetch
from models.db.queries.audit import Actor, AuditEntry
from models.egress import EgressPolicy
from models.ids import WEBHOOK_ENDPOINT, admin_id, new_uuid
from models.projects.policy import ProjectEgress
from models.secrets import Sealed, Sealer, Unreadable


@dataclass(frozen=True, slots=True)
class EndpointProject:
    """The project of an endpoint."""

    id: UUID
    name: str
    egress: ProjectEgress


@dataclass(frozen=True, slots=True)
class EndpointFields:
    """What is set of an endpoint. None: that stays."""

    name: str | None = None
    url: str | None = None
    types: Sequence[str] | None = None
    """of events; empty: all"""
    enabled: bool | None = None

    @property
    def values(self) -> dict[str, object]:
        """For the statement that changes an endpoint."""
        return {
            "name": self.name,
            "url": self.url,
            "types": None if self.types is None else Texts(list(self.types)),
            "enabled": self.enabled,
        }


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """The new signing secret of an endpoint. It is shown once."""

    endpoint: UUID
    secret: str
    keeps_old: bool = False
    """deliveries are signed with the old one too, for a while"""


def public_id(endpoint: UUID) -> str:
    """An endpoint's id as clients and operators see it."""
    return admin_id(WEBHOOK_ENDPOINT, endpoint)


async def create(
    connection: Connection,
    project: EndpointProject,
    sealer: Sealer,
    egress: EgressPolicy,
    fields: EndpointFields,
    most: int,
    actor: Actor,
) -> SigningSecret | None:
    """Makes an endpoint. `egress`: the rules of the server. None: the project is archived, or has
    `most` endpoints already. Raises NoKey and EgressRefused."""
    made, secret = new_uuid(), events.new_secret()
    sealed = events.seal_secrets(sealer, made, [secret])
    values = {
        "id": made,
        "project": project.id,
        "name": fields.name or "",
        "url": egress.of_project(project.egress).check_url(fields.url or "").url,
        "types": Texts(list(fields.types or ())),
        "secret_key_id": sealed.key_id,
        "secrets": sealed.sealed,
        "most": most,
    }
    entry = AuditEntry(actor, "webhook.create", public_id(made), project=project.name)
    inserted = await act(connection, statements.INSERT_ENDPOINT, values, entry)
    return SigningSecret(made, secret) if inserted else None


async def update(
    connection: Connection, endpoint: Endpoint, fields: EndpointFields, actor: Actor
) -> None:
    """Changes an endpoint. Its new `url` was checked as `create` does."""
    verb = {None: "set", True: "enable", False: "disable"}[fields.enabled]
    values = {"id": endpoint.id, **fields.values}
    await act(connection, statements.UPDATE_ENDPOINT, values, _entry(actor, verb, endpoint))


async def delete(connection: Connection, endpoint: Endpoint, actor: Actor) -> None:
    """Deletes an endpoint; its deliveries are gone with it."""
    entry = _entry(actor, "delete", endpoint)
    await act(connection, statements.DELETE_ENDPOINT, {"id": endpoint.id}, entry)


async def rotate(
    connection: Connection, sealer: Sealer, endpoint: Endpoint, overlap: timedelta, actor: Actor
) -> SigningSecret | None:
    """Gives an endpoint a new secret. For `overlap` deliveries are signed with the old one too, if
    the key that opens it is configured. None: the endpoint was deleted. Raises NoKey."""
    secret, key = events.new_secret(), {"id": endpoint.id, "project": endpoint.project_id}
    async with connection.transaction():
        for locked in await fetch(connection, statements.LOCK_ENDPOINT, key):
            kept = opened_secrets(sealer, locked)[:1] if overlap else []
            sealed = events.seal_secrets(sealer, locked.id, [secret, *kept])
            values = {
                "id": locked.id,
                "secret_key_id": sealed.key_id,
                "secrets": sealed.sealed,
                "overlap": overlap,
            }
            await execute(connection, statements.ROTATE_SECRET, values)
            await record(connection, _entry(actor, "rotate", locked))
            return SigningSecret(locked.id, secret, keeps_old=bool(kept))
    return None


def opened_secrets(sealer: Sealer, endpoint: Endpoint) -> list[str]:
    """The signing secrets of an endpoint, the newest one first; none if their key is missing."""
    try:
        stored = Sealed(endpoint.secret_key_id, endpoint.secrets)
        return events.open_secrets(sealer, endpoint.id, stored)
    except Unreadable:
        return []


async def send_test(
    connection: Connection, endpoint: Endpoint, event_type: str | None, actor: Actor
) -> tuple[UUID, str] | None:
    """Has a worker deliver an event about a response that does not exist; returns the event and its
    type. `event_type` None: one that the endpoint gets. None: the endpoint is disabled."""
    event = new_uuid()
    sent = event_type or next(iter(endpoint.types), events.EventType.RESPONSE_COMPLETED.value)
    values = {
        "id": new_uuid(),
        "endpoint": endpoint.id,
        "event_id": event,
        "type": sent,
        "object_id": events.TEST_OBJECT,
    }
    entry = _entry(actor, "test", endpoint)
    inserted = await act(connection, statements.INSERT_TEST_EVENT, values, entry)
    return (event, sent) if inserted else None


async def resend(
    connection: Connection, event: UUID, endpoint: Endpoint | None, actor: Actor
) -> int:
    """Delivers an event again, with the same id, to one endpoint or to all that it was for; returns
    to how many. 0: there is no such event."""
    values = {"event_id": event, "endpoint": None if endpoint is None else endpoint.id}
    entry = AuditEntry(actor, "webhook.resend", events.event_id(event))
    if endpoint is not None:
        details = {"endpoint": public_id(endpoint.id)}
        entry = AuditEntry(
            actor, entry.action, entry.object_id, project=endpoint.project, details=details
        )
    return len(await act(connection, statements.RESEND, values, entry))


def _entry(actor: Actor, verb: str, endpoint: Endpoint) -> AuditEntry:
    return AuditEntry(actor, f"webhook.{verb}", public_id(endpoint.id), project=endpoint.project)
