"""The bodies of the admin API: what is read of those of requests, and what answers have."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from fastapi import Request

from features.tenants.service import KeyChanges, ProjectFields
from models.db.queries.organization import KeyDetails, ProjectDetails, ServiceAccount
from models.errors import InvalidRequest
from models.ids import API_KEY, PROJECT, SERVICE_ACCOUNT, admin_id
from models.keys import KeyGrant
from models.projects.changes import MAX_NAME, MAX_WEIGHT, is_name
from models.projects.scopes import DEFAULT_SCOPES, Scope, parse_scopes
from models.wire.checks.basic import Boolean, Integer, require_object
from models.wire.checks.faults import missing, unknown_parameter, wrong_type
from web.http.body import json_object, read_json
from web.state import app_state

Json = dict[str, Any]

GRANT_FIELDS = ("name", "expires_in_seconds", "scopes", "allowed_models")
"""What the body of a new key has."""
_KEY_CHANGES = ("scopes", "expires_in_seconds", "allowed_models")
PROJECT_SCOPES = tuple(scope.value for scope in Scope if scope is not Scope.ADMIN)
MAX_SECONDS = 10 * 366 * 86_400
_MAX_TEXTS = 1000
_MAX_CHARACTERS = 64 * 1024
"""Of a list of strings. Each look-up of a key reads its models."""


# --- requests ---


async def read_object(request: Request) -> Json:
    """The body, a JSON object. Raises InvalidRequest."""
    body = await read_json(request, app_state(request).body_limits)
    return json_object(body.value)


def project_fields(body: Json, *, required: bool) -> ProjectFields:
    """What is set of a project; `required`: with its name. Raises InvalidRequest."""
    require_known(body, ("name", "weight", "policy"))
    policy = body.get("policy")
    return ProjectFields(
        name_field(body, required=required),
        integer_field(body, "weight", minimum=1, maximum=MAX_WEIGHT),
        policy if policy is None else require_object(policy, "policy"),
    )


def key_changes(body: Json) -> KeyChanges:
    """What is changed of a key: something. Raises InvalidRequest."""
    require_known(body, _KEY_CHANGES)
    if all(body.get(name) is None for name in _KEY_CHANGES):
        raise missing(" or ".join(_KEY_CHANGES))
    scopes, models = _scopes_and_models(body)
    return KeyChanges(
        None if scopes is None else scopes or DEFAULT_SCOPES, models, lifetime_field(body)
    )


def grant_of(body: Json) -> KeyGrant:
    """What a new key may do. Raises InvalidRequest."""
    scopes, models = _scopes_and_models(body)
    name = name_field(body, required=False)
    return KeyGrant(scopes or DEFAULT_SCOPES, name, models, lifetime_field(body))


def _scopes_and_models(body: Json) -> tuple[frozenset[Scope] | None, tuple[str, ...] | None]:
    """None: the field is absent."""
    scopes = texts_field(body, "scopes", PROJECT_SCOPES)
    models = texts_field(body, "allowed_models")
    return (
        None if scopes is None else parse_scopes(scopes),
        None if models is None else tuple(models),
    )


def require_known(body: Json, known: Collection[str]) -> None:
    """Raises InvalidRequest for a field that the route does not have, unless it is null."""
    for name, value in body.items():
        if name not in known and value is not None:
            raise unknown_parameter(name)


def name_field(body: Json, *, required: bool) -> str | None:
    """`name`. Raises InvalidRequest."""
    name = body.get("name")
    if name is None:
        if required:
            raise missing("name")
        return None
    if not isinstance(name, str):
        raise wrong_type("name", "a string", name)
    if not is_name(name):
        raise InvalidRequest(
            f"Invalid 'name': expected 1 to {MAX_NAME} characters that can be printed.",
            param="name",
            code="invalid_value",
        )
    return name


def integer_field(body: Json, name: str, *, minimum: int, maximum: int) -> int | None:
    """An optional integer. Raises InvalidRequest."""
    value = body.get(name)
    return None if value is None else Integer(minimum, maximum)(value, name)


def lifetime_field(body: Json) -> timedelta | None:
    """`expires_in_seconds`. Raises InvalidRequest."""
    seconds = integer_field(body, "expires_in_seconds", minimum=1, maximum=MAX_SECONDS)
    return None if seconds is None else timedelta(seconds=seconds)


def boolean_field(body: Json, name: str) -> bool | None:
    """An optional boolean. Raises InvalidRequest."""
    value = body.get(name)
    return None if value is None else Boolean()(value, name)


def texts_field(body: Json, name: str, allowed: Collection[str] = ()) -> list[str] | None:
    """An optional list of strings, each one of `allowed` if there are any. Raises
    InvalidRequest."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise wrong_type(name, "an array of strings", value)
    if len(value) > _MAX_TEXTS or sum(map(len, value)) > _MAX_CHARACTERS:
        raise InvalidRequest(
            f"Invalid '{name}': expected at most {_MAX_TEXTS} strings, with {_MAX_CHARACTERS} "
            "characters together.",
            param=name,
            code="array_above_max_length",
        )
    wrong = [text for text in value if allowed and text not in allowed]
    if wrong:
        raise InvalidRequest(
            f"Invalid value: '{wrong[0][:100]}'. Supported values are: {', '.join(allowed)}.",
            param=name,
            code="invalid_value",
        )
    return value


# --- answers ---


def _seconds_of(time: datetime | None) -> int | None:
    """Seconds since the epoch."""
    return None if time is None else int(time.timestamp())


def project_object(row: ProjectDetails) -> Json:
    """A project; `weight` and `policy` are ours."""
    return {
        "object": "organization.project",
        "id": admin_id(PROJECT, row.id),
        "name": row.name,
        "created_at": _seconds_of(row.created_at),
        "archived_at": _seconds_of(row.archived_at),
        "status": "active" if row.archived_at is None else "archived",
        "weight": row.weight,
        "policy": row.policy,
    }


def account_object(row: ServiceAccount) -> Json:
    """A service account."""
    return {
        "object": "organization.project.service_account",
        "id": admin_id(SERVICE_ACCOUNT, row.id),
        "name": row.name,
        "role": "member",
        "created_at": _seconds_of(row.created_at),
    }


def _key_fields(row: KeyDetails) -> Json:
    return {
        "id": admin_id(API_KEY, row.id),
        "name": row.name or "",
        "redacted_value": f"{row.prefix}…",
        "created_at": _seconds_of(row.created_at),
        "last_used_at": _seconds_of(row.last_used_at),
        "expires_at": _seconds_of(row.expires_at),
        "scopes": row.scopes,
        "allowed_models": row.allowed_models,
    }


def project_key_object(row: KeyDetails) -> Json:
    """A key of a project, without its value."""
    owner: Json = {"type": "service_account"}
    if row.service_account_id is not None and row.service_account_created_at is not None:
        owner["service_account"] = {
            "id": admin_id(SERVICE_ACCOUNT, row.service_account_id),
            "name": row.service_account,
            "role": "member",
            "created_at": _seconds_of(row.service_account_created_at),
        }
    return {
        "object": "organization.project.api_key",
        **_key_fields(row),
        "owner": owner,
        "owner_project_access": "active",
    }


def admin_key_object(row: KeyDetails) -> Json:
    """A key of an admin, without its value."""
    return {
        "object": "organization.admin_api_key",
        **_key_fields(row),
        "owner": {"type": "service_account", "name": row.project, "role": "owner"},
    }


def made_key_object(row: KeyDetails) -> Json:
    """A new key of a service account, without its value."""
    return {
        "object": "organization.project.service_account.api_key",
        "id": admin_id(API_KEY, row.id),
        "name": row.name or "",
        "created_at": _seconds_of(row.created_at),
        "expires_at": _seconds_of(row.expires_at),
    }


def deleted_object(public_id: str, kind: str) -> Json:
    """The answer to a delete."""
    return {"object": kind, "id": public_id, "deleted": True}
