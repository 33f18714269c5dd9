"""Endpoints of webhooks and their deliveries, as commands change and show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from cli.errors import RequestRefused
from cli.operations.audit_entries import audited, operator, record_audit
from cli.operations.projects import find_project
from models.db.arrays import Texts
from models.db.queries import webhooks as statements
from models.db.queries.audit import AuditEntry
from models.db.sync import SyncConnection, execute_sync, fetch_sync
from models.egress import EgressPolicy, EgressRefused
from models.ids import EVENT, WEBHOOK_ENDPOINT, admin_id, new_uuid
from models.operator.text import format_time
from models.projects.policy import ProjectPolicy
from models.secrets import NoKey, Sealed, Sealer, Unreadable, parse_keys
from models.signing_secrets import open_secrets, seal_secrets
from models.webhooks.events import TEST_OBJECT, EventType, event_id
from models.webhooks.signature import new_secret


@dataclass(frozen=True, slots=True)
class ShownEndpoint:
    """An endpoint, without its secrets."""

    id: str
    project: str
    name: str
    url: str
    types: list[str]
    """of events; empty: all"""
    created_at: str
    state: str
    """`enabled`, `failing` or `disabled`"""
    reason: str | None
    """why it is disabled"""
    failures: int
    failing_since: str | None
    waiting: int

    @classmethod
    def from_row(cls, row: statements.Endpoint) -> "ShownEndpoint":
        """The endpoint of a row."""
        return cls(
            id=endpoint_id(row.id),
            project=row.project,
            name=row.name,
            url=row.url,
            types=row.types,
            created_at=format_time(row.created_at),
            state=row.state,
            reason=row.disabled_reason,
            failures=row.failures,
            failing_since=_time(row.failing_since),
            waiting=row.waiting,
        )


@dataclass(frozen=True, slots=True)
class ShownDelivery:
    """A delivery."""

    event: str
    endpoint: str
    type: str
    object: str
    created_at: str
    state: str
    """`delivered`, `waiting` or `failed`"""
    attempts: int
    next_attempt_at: str | None
    delivered_at: str | None
    last_status: int | None
    last_error: str | None

    @classmethod
    def from_row(cls, row: statements.ListedDelivery) -> "ShownDelivery":
        """The delivery of a row."""
        return cls(
            event=event_id(row.event_id),
            endpoint=endpoint_id(row.endpoint_id),
            type=row.type,
            object=row.object_id,
            created_at=format_time(row.created_at),
            state=row.state,
            attempts=row.attempts,
            next_attempt_at=_time(row.next_attempt_at),
            delivered_at=_time(row.delivered_at),
            last_status=row.last_status,
            last_error=row.last_error,
        )


@dataclass(frozen=True, slots=True)
class NewSecret:
    """What is shown once: an endpoint and its signing secret."""

    id: str
    secret: str


def endpoint_id(value: UUID) -> str:
    """An endpoint's id as operators see it."""
    return admin_id(WEBHOOK_ENDPOINT, value)


def sealer_of(secret_keys: str | None) -> Sealer:
    """The sealer of the setting `secret_keys`."""
    return Sealer(parse_keys(secret_keys or ""))


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What an operator wants."""

    url: str
    project: str
    name: str
    types: Sequence[str]
    """of events; empty: all"""


def create(
    database: SyncConnection,
    sealer: Sealer,
    server_egress: EgressPolicy,
    wanted: NewEndpoint,
    most: int,
) -> NewSecret:
    """Makes an endpoint, if its project has fewer than `most`. Raises RequestRefused."""
    _require_types(wanted.types)
    project = find_project(database, wanted.project)
    egress = server_egress.of_project(ProjectPolicy.from_json(project.policy).egress)
    try:
        target = egress.check_url(wanted.url)
    except EgressRefused as refusal:
        raise RequestRefused(
            f"{wanted.url} may not be reached: {refusal}; BACKBURNER_EGRESS__ALLOW names exceptions"
        ) from refusal
    made, secret = new_uuid(), new_secret()
    sealed = _sealed(sealer, made, [secret])
    values = {
        "id": made,
        "project": project.id,
        "name": wanted.name,
        "url": target.url,
        "types": Texts(list(wanted.types)),
        "secret_key_id": sealed.key_id,
        "secrets": sealed.sealed,
        "most": most,
    }
    with audited(database, _entry("webhook.create", made).of_project(project.name)):
        if not fetch_sync(database, statements.INSERT_ENDPOINT, values):
            raise RequestRefused(
                f"the project {project.name} is deleted, or has {most} endpoints already;"
                " `backburner webhooks delete` makes room"
            )
    return NewSecret(endpoint_id(made), secret)


def _require_types(types: Sequence[str]) -> None:
    unknown = [name for name in types if name not in list(EventType)]
    if unknown:
        known = ", ".join(EventType)
        raise RequestRefused(f"there is no event {unknown[0]}; there are {known}")


def list_endpoints(database: SyncConnection, project: str | None = None) -> list[ShownEndpoint]:
    """All endpoints, or those of one project."""
    rows = fetch_sync(database, statements.LIST_ENDPOINTS, {"project": project})
    return [ShownEndpoint.from_row(row) for row in rows]


def rotate(database: SyncConnection, sealer: Sealer, name: str, overlap: timedelta) -> NewSecret:
    """Gives an endpoint a new secret. For `overlap` deliveries are signed with the old one too.
    Raises RequestRefused."""
    found, secret = _find(database, name), new_secret()
    key = {"id": found.id, "project": found.project_id}
    with audited(database, _entry("webhook.rotate", found.id).of_project(found.project)):
        for endpoint in fetch_sync(database, statements.LOCK_ENDPOINT, key):
            kept = _old_secret(sealer, endpoint) if overlap else []
            sealed = _sealed(sealer, endpoint.id, [secret, *kept])
            values = {
                "id": endpoint.id,
                "secret_key_id": sealed.key_id,
                "secrets": sealed.sealed,
                "overlap": overlap,
            }
            execute_sync(database, statements.ROTATE_SECRET, values)
    return NewSecret(endpoint_id(found.id), secret)


def _old_secret(sealer: Sealer, endpoint: statements.Endpoint) -> list[str]:
    try:
        stored = Sealed(endpoint.secret_key_id, endpoint.secrets)
        return open_secrets(sealer, endpoint.id, stored)[:1]
    except Unreadable as error:
        raise RequestRefused(
            "its secret cannot be opened: BACKBURNER_SECRET_KEYS lacks the key of it;"
            " `--overlap 0s` replaces it"
        ) from error


def set_enabled(database: SyncConnection, name: str, *, enabled: bool) -> str:
    """Enables or disables an endpoint; returns its id. Raises RequestRefused."""
    endpoint = _find(database, name)
    action = "webhook.enable" if enabled else "webhook.disable"
    return _change(database, endpoint, action, enabled=enabled)


def set_types(database: SyncConnection, name: str, types: Sequence[str]) -> str:
    """Changes which events an endpoint gets; none are all. Returns its id. Raises
    RequestRefused."""
    _require_types(types)
    return _change(database, _find(database, name), "webhook.set", types=types)


def _change(
    database: SyncConnection,
    endpoint: statements.Endpoint,
    action: str,
    *,
    enabled: bool | None = None,
    types: Sequence[str] | None = None,
) -> str:
    values = {
        "id": endpoint.id,
        "name": None,
        "url": None,
        "types": None if types is None else Texts(list(types)),
        "enabled": enabled,
    }
    with audited(database, _entry(action, endpoint.id).of_project(endpoint.project)):
        execute_sync(database, statements.UPDATE_ENDPOINT, values)
    return endpoint_id(endpoint.id)


def delete(database: SyncConnection, name: str) -> str:
    """Deletes an endpoint and its deliveries; returns its id. Raises RequestRefused."""
    endpoint = _find(database, name)
    with audited(database, _entry("webhook.delete", endpoint.id).of_project(endpoint.project)):
        execute_sync(database, statements.DELETE_ENDPOINT, {"id": endpoint.id})
    return endpoint_id(endpoint.id)


def send_test(database: SyncConnection, name: str, event_type: str | None) -> str:
    """Has a worker deliver an event about a response that does not exist; returns the event's id.
    `event_type`: None: one that the endpoint gets. Raises RequestRefused."""
    _require_types([] if event_type is None else [event_type])
    endpoint = _find(database, name)
    event = new_uuid()
    values = {
        "id": new_uuid(),
        "endpoint": endpoint.id,
        "event_id": event,
        "type": event_type or next(iter(endpoint.types), EventType.RESPONSE_COMPLETED.value),
        "object_id": TEST_OBJECT,
    }
    with audited(database, _entry("webhook.test", endpoint.id).of_project(endpoint.project)):
        if not fetch_sync(database, statements.INSERT_TEST_EVENT, values):
            raise RequestRefused("it is disabled; `backburner webhooks enable` enables it")
    return event_id(event)


def list_deliveries(
    database: SyncConnection, name: str | None, limit: int, *, failed: bool
) -> list[ShownDelivery]:
    """The newest deliveries, of one endpoint or of all; with `failed` those that were not
    delivered. Raises RequestRefused."""
    values = {
        "endpoint": None if name is None else _find(database, name).id,
        "failed": failed,
        "limit": limit,
    }
    rows = fetch_sync(database, statements.LIST_DELIVERIES, values)
    return [ShownDelivery.from_row(row) for row in rows]


def resend(database: SyncConnection, event: str) -> int:
    """Delivers an event again to all endpoints that it was for, with the same id; returns how many
    they are. Raises RequestRefused."""
    digits = event.removeprefix(f"{EVENT}_")
    try:
        values = {"event_id": UUID(hex=digits), "endpoint": None}
    except ValueError:
        raise RequestRefused(f"{event} is no id of an event: evt_ and 32 digits") from None
    with database.transaction():
        resent = fetch_sync(database, statements.RESEND, values)
        if not resent:
            raise RequestRefused(f"there is no event {event}; `webhooks deliveries` lists them")
        record_audit(database, AuditEntry(operator(), "webhook.resend", event))
    return len(resent)


def _find(database: SyncConnection, name: str) -> statements.Endpoint:
    """The endpoint with this id, or the beginning of one. Raises RequestRefused."""
    digits = name.removeprefix(f"{WEBHOOK_ENDPOINT}_").lower()
    rows = fetch_sync(database, statements.LIST_ENDPOINTS, {"project": None})
    found = [row for row in rows if digits and row.id.hex.startswith(digits)]
    if not found:
        raise RequestRefused(f"there is no endpoint {name}; `backburner webhooks list` lists them")
    if len(found) > 1:
        raise RequestRefused(f"{name} is the beginning of several endpoints; write more of it")
    return found[0]


def _sealed(sealer: Sealer, endpoint: UUID, secrets: list[str]) -> Sealed:
    try:
        return seal_secrets(sealer, endpoint, secrets)
    except NoKey as error:
        raise RequestRefused(
            "a signing secret is stored sealed, and there is no key: set BACKBURNER_SECRET_KEYS"
        ) from error


def _entry(action: str, endpoint: UUID) -> AuditEntry:
    return AuditEntry(operator(), action, endpoint_id(endpoint))


def _time(value: datetime | None) -> str | None:
    return None if value is None else format_time(value)


def secret_keys_of(data: Path | None) -> str | None:
    """The sealing keys: the setting, or those of the data folder of `up`."""
    from cli.embedded.credentials import load_or_create
    from cli.embedded.data_folder import default_folder
    from cli.settings import read_settings, secret_value

    configured = secret_value(read_settings().secret_keys)
    if configured is not None:
        return configured
    stored = (data or default_folder()) / "credentials.json"
    return load_or_create(stored, None).sealing_key if stored.exists() else None
