"""/v1/organization: projects, their keys and service accounts, admins' keys (docs/projects.md).

Only for keys with the scope `admin`. The paths and objects are OpenAI's, with `policy`, `weight`,
`scopes` and `allowed_models` besides.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.tenants import bodies, service, usage_routes
from features.tenants.service import DefaultProject, NameTaken, ProjectFields, project_of_id
from models.db.database import Connection, fetch_idempotent, find_by_id
from models.db.queries import organization as statements
from models.db.queries.organization import KeyDetails, ProjectDetails, ServiceAccount
from models.db.statement import Query, RowT
from models.errors import InvalidRequest, NotFound
from models.ids import API_KEY, PROJECT, SERVICE_ACCOUNT, admin_id, parse_admin_id
from models.keys import DEFAULT_PROJECT, KeyGrant
from models.projects.changes import BadPolicy
from models.projects.scopes import Scope
from web.http.auth import Admin
from web.http.body import counted_json
from web.http.json_responses import json_response
from web.http.params import boolean, paging
from web.http.request_record import actor_of
from web.idempotency.creates import Make, Show, note_made
from web.state import app_state

router = APIRouter(prefix="/v1/organization")

MadeT = TypeVar("MadeT")


# --- projects ---


@router.get("/projects")
async def list_projects(request: Request, _key: Admin) -> Response:
    """The projects, the oldest first; with `include_archived=true` also archived ones."""
    archived = boolean(request, "include_archived", default=False)
    query = statements.LIST_PROJECTS
    return await _page(request, query, PROJECT, bodies.project_object, include_archived=archived)


@router.post("/projects")
async def create_project(request: Request, _key: Admin) -> Response:
    """Creates a project."""
    body = await bodies.read_object(request)
    fields = bodies.project_fields(body, required=True)

    async def make() -> bodies.Json:
        with _refusals(fields):
            async with _transaction(request) as connection:
                made = await service.create_project(
                    connection,
                    fields,
                    actor_of(request),
                    app_state(request).routes.server.upstreams,
                )
                await note_made(connection, admin_id(PROJECT, made.id))
        return bodies.project_object(made)

    async def show(made: str) -> bodies.Json:
        return bodies.project_object(await _project(request, made))

    return await _once(request, body, make, show)


@router.get("/projects/{project_id}")
async def retrieve_project(project_id: str, request: Request, _key: Admin) -> Response:
    """One project."""
    return json_response(bodies.project_object(await _project(request, project_id)))


@router.post("/projects/{project_id}")
async def update_project(project_id: str, request: Request, _key: Admin) -> Response:
    """Changes a project. `policy` is a JSON Merge Patch."""
    fields = bodies.project_fields(await bodies.read_object(request), required=False)
    project = await _project(request, project_id)
    upstreams = app_state(request).routes.server.upstreams
    with _refusals(fields):
        async with app_state(request).pool.connection() as connection:
            changed = await service.change_project(
                connection, project.id, fields, actor_of(request), upstreams
            )
    return json_response(bodies.project_object(changed))


@router.post("/projects/{project_id}/archive")
async def archive_project(project_id: str, request: Request, _key: Admin) -> Response:
    """Makes all keys of a project invalid, for ever, and cancels its open responses."""
    project = await _project(request, project_id)
    try:
        async with app_state(request).pool.connection() as connection:
            archived = await service.archive_project(connection, project, actor_of(request))
    except DefaultProject:
        raise InvalidRequest("The default project cannot be archived.") from None
    return json_response(bodies.project_object(archived))


@contextmanager
def _refusals(fields: ProjectFields) -> Iterator[None]:
    """Raises InvalidRequest for what the service refuses: a name that is taken, a wrong policy."""
    try:
        yield
    except BadPolicy as bad:
        param = f"policy.{bad.place}" if bad.place else "policy"
        raise InvalidRequest(
            f"Invalid '{param}': {bad.message}.", param=param, code="invalid_value"
        ) from None
    except NameTaken:
        raise InvalidRequest(
            f"Invalid 'name': there is a project '{fields.name or ''}' already.",
            param="name",
            code="invalid_value",
        ) from None


# --- keys of projects ---


@router.get("/projects/{project_id}/api_keys")
async def list_project_keys(project_id: str, request: Request, _key: Admin) -> Response:
    """The keys of a project that were not revoked, the oldest first."""
    query = statements.PROJECT_KEYS
    return await _page(request, query, API_KEY, bodies.project_key_object, of_project=project_id)


@router.get("/projects/{project_id}/api_keys/{key_id}")
async def retrieve_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """One key of a project."""
    return json_response(bodies.project_key_object(await _find_key(request, key_id, project_id)))


@router.post("/projects/{project_id}/api_keys/{key_id}")
async def update_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """Changes what a key may do, and until when. No scopes: everything of its project."""
    changes = bodies.key_changes(await bodies.read_object(request))
    found = await _find_key(request, key_id, project_id)
    async with app_state(request).pool.connection() as connection:
        if not await service.change_key(connection, found, changes, actor_of(request)):
            raise InvalidRequest("The API key has expired. Create another one.")
    return json_response(bodies.project_key_object(await _find_key(request, key_id, project_id)))


@router.delete("/projects/{project_id}/api_keys/{key_id}")
async def delete_project_key(
    project_id: str, key_id: str, request: Request, _key: Admin
) -> Response:
    """Makes a key invalid, for ever."""
    found = await _find_key(request, key_id, project_id)
    return await _revoke(request, found, key_id, "organization.project.api_key.deleted")


# --- service accounts and their keys ---


@router.get("/projects/{project_id}/service_accounts")
async def list_service_accounts(project_id: str, request: Request, _key: Admin) -> Response:
    """The service accounts of a project, the oldest first."""
    query = statements.LIST_SERVICE_ACCOUNTS
    return await _page(
        request, query, SERVICE_ACCOUNT, bodies.account_object, of_project=project_id
    )


@router.post("/projects/{project_id}/service_accounts")
async def create_service_account(project_id: str, request: Request, _key: Admin) -> Response:
    """Creates a service account with a key, which is shown here only."""
    body = await bodies.read_object(request)
    bodies.require_known(body, (*bodies.GRANT_FIELDS, "create_service_account_only"))
    name, grant = bodies.name_field(body, required=True) or "", bodies.grant_of(body)
    with_key = not bodies.boolean_field(body, "create_service_account_only")

    async def make() -> bodies.Json:
        project, actor = await _project(request, project_id), actor_of(request)
        async with _transaction(request) as connection:
            account = await service.create_account(connection, project, name, actor)
            if account is None:
                raise NotFound(f"The project '{project_id}' is archived.")
            secret = None
            if with_key:
                made, value = _require_active(
                    await service.create_key(connection, project, grant, actor, account.id)
                )
                secret = {"api_key": bodies.made_key_object(made) | {"value": value}}
            await note_made(connection, admin_id(SERVICE_ACCOUNT, account.id), secret)
        return bodies.account_object(account) | (secret or {})

    async def show(made: str) -> bodies.Json:
        return bodies.account_object(
            await _account(request, await _project(request, project_id), made)
        )

    return await _once(request, body, make, show)


@router.get("/projects/{project_id}/service_accounts/{account_id}")
async def retrieve_service_account(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """One service account."""
    project = await _project(request, project_id)
    return json_response(bodies.account_object(await _account(request, project, account_id)))


@router.post("/projects/{project_id}/service_accounts/{account_id}/api_keys")
async def create_service_account_key(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """Creates another key of a service account, which is shown here only."""
    body = await bodies.read_object(request)
    bodies.require_known(body, bodies.GRANT_FIELDS)
    bodies.name_field(body, required=False)
    grant = bodies.grant_of(body)

    async def make() -> bodies.Json:
        project = await _project(request, project_id)
        owner = await _account(request, project, account_id)
        async with _transaction(request) as connection:
            made, value = _require_active(
                await service.create_key(connection, project, grant, actor_of(request), owner.id)
            )
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return bodies.made_key_object(made) | {"value": value}

    async def show(made: str) -> bodies.Json:
        return bodies.made_key_object(await _find_key(request, made, project_id))

    return await _once(request, body, make, show)


@router.delete("/projects/{project_id}/service_accounts/{account_id}")
async def delete_service_account(
    project_id: str, account_id: str, request: Request, _key: Admin
) -> Response:
    """Deletes a service account; its keys are invalid from now on."""
    project = await _project(request, project_id)
    account = await _account(request, project, account_id)
    async with app_state(request).pool.connection() as connection:
        await service.delete_account(connection, project, account, actor_of(request))
    return json_response(
        bodies.deleted_object(account_id, "organization.project.service_account.deleted")
    )


# --- keys of admins ---


@router.get("/admin_api_keys")
async def list_admin_keys(request: Request, _key: Admin) -> Response:
    """The keys of admins, the newest first unless `order=asc`."""
    query = statements.ADMIN_KEYS[paging(request).order]
    return await _page(request, query, API_KEY, bodies.admin_key_object)


@router.post("/admin_api_keys")
async def create_admin_key(request: Request, _key: Admin) -> Response:
    """Creates a key of the default project with the scope `admin` alone, which is shown here
    only."""
    body = await bodies.read_object(request)
    bodies.require_known(body, ("name", "expires_in_seconds"))
    name = bodies.name_field(body, required=True)
    grant = KeyGrant(frozenset((Scope.ADMIN,)), name, None, bodies.lifetime_field(body))

    async def make() -> bodies.Json:
        values = {"name": DEFAULT_PROJECT, "digits": None}
        pool = app_state(request).pool
        projects = await fetch_idempotent(pool, statements.FIND_PROJECTS, values)
        if not projects:
            raise NotFound("There is no default project.")  # it was renamed
        async with _transaction(request) as connection:
            made, value = _require_active(
                await service.create_key(connection, projects[0], grant, actor_of(request))
            )
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return bodies.admin_key_object(made) | {"value": value}

    async def show(made: str) -> bodies.Json:
        return bodies.admin_key_object(await _find_key(request, made, None))

    return await _once(request, body, make, show)


@router.get("/admin_api_keys/{key_id}")
async def retrieve_admin_key(key_id: str, request: Request, _key: Admin) -> Response:
    """One key of an admin."""
    return json_response(bodies.admin_key_object(await _find_key(request, key_id, None)))


@router.delete("/admin_api_keys/{key_id}")
async def delete_admin_key(key_id: str, request: Request, _key: Admin) -> Response:
    """Makes a key of an admin invalid, for ever."""
    found = await _find_key(request, key_id, None)
    return await _revoke(request, found, key_id, "organization.admin_api_key.deleted")


# --- what they have in common ---


async def _page(
    request: Request,
    query: Query[RowT],
    prefix: str,
    to_object: Callable[[RowT], bodies.Json],
    *,
    of_project: str | None = None,
    **values: object,
) -> Response:
    """A page of a list. `prefix`: of its ids. Raises InvalidRequest for a position that is no such
    id, and NotFound for a project that is not there."""
    asked = paging(request)
    if of_project is not None:
        values["project"] = (await _project(request, of_project)).id
    values |= {"after": asked.after_id(prefix), "max_rows": asked.row_limit}
    rows = await fetch_idempotent(app_state(request).pool, query, values)
    return await counted_json(request, asked.page_of([to_object(row) for row in rows]))


async def _once(request: Request, body: bodies.Json, make: Make, show: Show) -> Response:
    return json_response(await app_state(request).creates.once(request, body, make, show))


@asynccontextmanager
async def _transaction(request: Request) -> AsyncIterator[Connection]:
    async with app_state(request).pool.connection() as connection, connection.transaction():
        yield connection


async def _project(request: Request, public_id: str) -> ProjectDetails:
    return await project_of_id(app_state(request).pool, public_id)


async def _find_key(request: Request, public_id: str, project_id: str | None) -> KeyDetails:
    """A key of this project that is not revoked; None: of an admin. Raises NotFound."""
    project = None if project_id is None else (await _project(request, project_id)).id
    key = parse_admin_id(API_KEY, public_id)
    of: dict[str, Any] = {"project": project, "is_admin": project is None}
    row = await find_by_id(app_state(request).pool, statements.KEY_BY_ID, key, **of)
    if row is None:
        raise NotFound(f"No API key found with id '{public_id[:100]}'.")
    return row


async def _revoke(request: Request, key: KeyDetails, public_id: str, kind: str) -> Response:
    async with app_state(request).pool.connection() as connection:
        await service.revoke_key(connection, key, actor_of(request))
    return json_response(bodies.deleted_object(public_id, kind))


async def _account(request: Request, project: ProjectDetails, public_id: str) -> ServiceAccount:
    pool, query = app_state(request).pool, statements.FIND_SERVICE_ACCOUNT
    account = parse_admin_id(SERVICE_ACCOUNT, public_id)
    row = await find_by_id(pool, query, account, project=project.id)
    if row is None:
        raise NotFound(f"No service account found with id '{public_id[:100]}'.")
    return row


def _require_active(made: MadeT | None) -> MadeT:
    """What was made in a project. Raises NotFound for None: the project is archived."""
    if made is None:
        raise NotFound("The project is archived.")
    return made


ROUTERS = (router, usage_routes.router)
