"""Projects, service accounts and keys as the admin API shows them."""

from datetime import datetime
from typing import Any

from models.db.queries.organization import KeyDetails, ProjectDetails, ServiceAccount
from models.ids import API_KEY, PROJECT, SERVICE_ACCOUNT, admin_id

Json = dict[str, Any]


def seconds_of(time: datetime | None) -> int | None:
    """Seconds since the epoch."""
    return None if time is None else int(time.timestamp())


def project_object(row: ProjectDetails) -> Json:
    """A project; `weight` and `policy` are ours."""
    return {
        "object": "organization.project",
        "id": admin_id(PROJECT, row.id),
        "name": row.name,
        "created_at": seconds_of(row.created_at),
        "archived_at": seconds_of(row.archived_at),
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
        "created_at": seconds_of(row.created_at),
    }


def _key_fields(row: KeyDetails) -> Json:
    return {
        "id": admin_id(API_KEY, row.id),
        "name": row.name or "",
        "redacted_value": f"{row.prefix}…",
        "created_at": seconds_of(row.created_at),
        "last_used_at": seconds_of(row.last_used_at),
        "expires_at": seconds_of(row.expires_at),
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
            "created_at": seconds_of(row.service_account_created_at),
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
        "created_at": seconds_of(row.created_at),
        "expires_at": seconds_of(row.expires_at),
    }


def deleted_object(public_id: str, kind: str) -> Json:
    """The answer to a delete."""
    return {"object": kind, "id": public_id, "deleted": True}
