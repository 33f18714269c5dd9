"""/v1/organization: projects, their keys and service accounts, admins' keys (docs/projects.md).

Only for keys with the scope `admin`. The paths and objects are OpenAI's, with `policy`, `weight`,
`scopes` and `allowed_models` besides.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.tenants import usage_routes
from features.tenants.bodies import (
    boolean_field,
    integer_field,
    lifetime_field,
    name_field,
    object_field,
    require_known,
    texts_field,
)
from features.tenants.organization import Organization
from features.tenants.service import KeyChanges, ProjectFields
from features.tenants.web import Tenants
from models.keys import KeyGrant
from models.projects.changes import MAX_WEIGHT
from models.projects.scopes import DEFAULT_SCOPES, Scope, parse_scopes
from models.wire.checks.faults import missing
from web.http.auth import Admin
from web.http.body import counted_json, json_object, read_json
from web.http.json_responses import json_response
from web.http.params import boolean, paging
from web.http.request_record import actor_of
from web.idempotency.creates import Make, Show
from web.state import app_state

router = APIRouter(prefix="/v1/organization")

_PROJECT_FIELDS = ("name", "weight", "policy")
_KEY_CHANGES = ("scopes", "expires_in_seconds", "allowed_models")
_KEY_FIELDS = ("name", "expires_in_seconds", "scopes", "allowed_models")
PROJECT_SCOPES = tuple(scope.value for scope in Scope if scope is not Scope.ADMIN)


@router.get("/projects")
async def list_projects(request: Request, _key: Admin) -> Response:
    """The projects, the oldest first; with `include_archived=true` also archived ones."""
    archived = boolean(request, "include_archived", default=False)
    page = await _organization(request).projects.page(paging(request), include_archived=archived)
    return await counted_json(request, page)


@router.post("/projects")
async def create_project(request: Request, _key: Admin) -> Response:
    """Creates a project."""
    body, projects = await _body(request), _organization(request).projects
    fields = _project_fields(body, required=True)
    make = partial(projects.create, fields, actor_of(request))
    return json_response(await _once(request, body, make, projects.show))


@router.get("/projects/{project_id}")
async def retrieve_project(project_id: str, request: Request, _key: Admin) -> Response:
    """One project."""
    return json_response(await _organization(request).projects.show(project_id))


@router.post("/projects/{project_id}")
async def update_project(project_id: str, request: Request, _key: Admin) -> Response:
    """Changes a project. `policy` is a JSON Merge Patch."""
    fields = _project_fields(await _body(request), required=False)
    changed = await _organization(request).projects.change(project_id, fields, actor_of(request))
    return json_response(changed)


@router.post("/projects/{project_id}/archive")
async def archive_project(project_id: str, request: Request, _key: Admin) -> Response:
    """Makes all keys of a project invalid, for ever, and cancels its open responses."""
    projects = _organization(request).projects
    return json_response(await projects.archive(project_id, actor_of(request)))


@router.get("/projects/{project_id}/api_keys")
async def list_project_keys(project_id: str, request: Request, _key: Admin) -> Response:
    """The keys of a project that were not revoked."""
    page = await _organization(request).project_keys.page(project_id, paging(request))
    return await counted_json(request, page)


@router.get("/projects/{project_id}/api_keys/{key_id}")
async def retrieve_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """One key of a project."""
    return json_response(await _organization(request).project_keys.show(project_id, key_id))


@router.post("/projects/{project_id}/api_keys/{key_id}")
async def update_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """Changes what a key may do, and until when. No scopes: everything of its project."""
    changes = _key_changes(await _body(request))
    changed = await _organization(request).project_keys.change(
        project_id, key_id, changes, actor_of(request)
    )
    return json_response(changed)


@router.delete("/projects/{project_id}/api_keys/{key_id}")
async def delete_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """Makes a key invalid, for ever."""
    deleted = await _organization(request).project_keys.delete(
        project_id, key_id, actor_of(request)
    )
    return json_response(deleted)


@router.get("/projects/{project_id}/service_accounts")
async def list_service_accounts(project_id: str, request: Request, _key: Admin) -> Response:
    """The service accounts of a project."""
    page = await _organization(request).service_accounts.page(project_id, paging(request))
    return await counted_json(request, page)


@router.post("/projects/{project_id}/service_accounts")
async def create_service_account(project_id: str, request: Request, _key: Admin) -> Response:
    """Creates a service account with a key, which is shown here only."""
    body = await _body(request)
    require_known(body, (*_KEY_FIELDS, "create_service_account_only"))
    name, grant = name_field(body, required=True) or "", _grant(body)
    only_account = boolean_field(body, "create_service_account_only")
    accounts, actor = _organization(request).service_accounts, actor_of(request)
    of_key = None if only_account else grant
    make = partial(accounts.create, project_id, name, of_key, actor)
    return json_response(await _once(request, body, make, partial(accounts.show, project_id)))


@router.get("/projects/{project_id}/service_accounts/{account_id}")
async def retrieve_service_account(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """One service account."""
    return json_response(await _organization(request).service_accounts.show(project_id, account_id))


@router.post("/projects/{project_id}/service_accounts/{account_id}/api_keys")
async def create_service_account_key(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """Creates another key of a service account, which is shown here only."""
    body = await _body(request)
    require_known(body, _KEY_FIELDS)
    name_field(body, required=False)
    accounts = _organization(request).service_accounts
    make = partial(accounts.create_key, project_id, account_id, _grant(body), actor_of(request))
    return json_response(await _once(request, body, make, partial(accounts.show_key, project_id)))


@router.delete("/projects/{project_id}/service_accounts/{account_id}")
async def delete_service_account(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """Deletes a service account; its keys are invalid from now on."""
    deleted = await _organization(request).service_accounts.delete(
        project_id, account_id, actor_of(request)
    )
    return json_response(deleted)


@router.get("/admin_api_keys")
async def list_admin_keys(request: Request, _key: Admin) -> Response:
    """The keys of admins, the newest first unless `order=asc`."""
    page = await _organization(request).admin_keys.page(paging(request))
    return await counted_json(request, page)


@router.post("/admin_api_keys")
async def create_admin_key(request: Request, _key: Admin) -> Response:
    """Creates a key with the scope `admin`, which is shown here only."""
    body = await _body(request)
    require_known(body, ("name", "expires_in_seconds"))
    keys, name = _organization(request).admin_keys, name_field(body, required=True) or ""
    make = partial(keys.create, name, lifetime_field(body), actor_of(request))
    return json_response(await _once(request, body, make, keys.show))


@router.get("/admin_api_keys/{key_id}")
async def retrieve_admin_key(key_id: str, request: Request, _key: Admin) -> Response:
    """One key of an admin."""
    return json_response(await _organization(request).admin_keys.show(key_id))


@router.delete("/admin_api_keys/{key_id}")
async def delete_admin_key(key_id: str, request: Request, _key: Admin) -> Response:
    """Makes a key of an admin invalid, for ever."""
    return json_response(await _organization(request).admin_keys.delete(key_id, actor_of(request)))


def _organization(request: Request) -> Organization:
    return Tenants.of(request).organization


async def _once(request: Request, body: dict[str, Any], make: Make, show: Show) -> dict[str, Any]:
    return await app_state(request).creates.once(request, body, make, show)


async def _body(request: Request) -> dict[str, Any]:
    body = await read_json(request, app_state(request).body_limits)
    return json_object(body.value)


def _project_fields(body: dict[str, Any], *, required: bool) -> ProjectFields:
    require_known(body, _PROJECT_FIELDS)
    return ProjectFields(
        name_field(body, required=required),
        integer_field(body, "weight", minimum=1, maximum=MAX_WEIGHT),
        object_field(body, "policy"),
    )


def _key_changes(body: dict[str, Any]) -> KeyChanges:
    require_known(body, _KEY_CHANGES)
    if all(body.get(name) is None for name in _KEY_CHANGES):
        raise missing(" or ".join(_KEY_CHANGES))
    scopes = texts_field(body, "scopes", PROJECT_SCOPES)
    models = texts_field(body, "allowed_models")
    return KeyChanges(
        None if scopes is None else parse_scopes(scopes) or DEFAULT_SCOPES,
        None if models is None else tuple(models),
        lifetime_field(body),
    )


def _grant(body: dict[str, Any]) -> KeyGrant:
    scopes = texts_field(body, "scopes", PROJECT_SCOPES)
    models = texts_field(body, "allowed_models")
    return KeyGrant(
        parse_scopes(scopes) if scopes else DEFAULT_SCOPES,
        name_field(body, required=False),
        None if models is None else tuple(models),
        lifetime_field(body),
    )


ROUTERS = (router, usage_routes.router)
