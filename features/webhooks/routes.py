"""/v1/webhook_endpoints: the webhooks of the key's project. The same below
/v1/organization/projects/{project_id}, of any project, for keys with the scope `admin`
(docs/webhooks.md).
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from features.tenants import bodies
from features.tenants.service import project_of_id
from features.webhooks.events import EventType
from features.webhooks.service import EndpointFields, EndpointProject
from features.webhooks.web import DELIVERY_STATES, WebhookEndpoints, Webhooks
from models.errors import InvalidRequest
from models.projects.policy import ProjectPolicy
from models.wire.checks.faults import missing, wrong_type
from web.http.auth import Key, authorize, authorize_admin
from web.http.body import counted_json
from web.http.connection import cancel_on_disconnect
from web.http.json_responses import json_response
from web.http.params import choice, paging
from web.http.request_record import actor_of, request_record
from web.state import app_state

MAX_OVERLAP = 30 * 86_400
"""Seconds for which an old secret may stay valid."""
_A_DAY = 86_400
ADMIN_SUFFIX = "_of_project"
"""What the names of the routes for admins end with."""
_PROJECT_ID = "project_id"


async def _named_project(request: Request) -> EndpointProject:
    public_id = request.path_params.get(_PROJECT_ID)
    if public_id is None:
        key = await authorize(request)
        return EndpointProject(key.project_id, key.project, key.policy.egress)
    await authorize_admin(request)
    project = await project_of_id(app_state(request).pool, public_id)
    policy = ProjectPolicy.from_json(project.policy)
    return EndpointProject(project.id, project.name, policy.egress)


NamedProject = Annotated[EndpointProject, Depends(_named_project)]
"""The project that the path names, for a key with the scope `admin`; else the key's own."""


async def list_endpoints(request: Request, project: NamedProject) -> Response:
    """The endpoints of a project, the newest first."""
    return await counted_json(request, await _endpoints(request).page(project, paging(request)))


async def create_endpoint(request: Request, project: NamedProject) -> Response:
    """Creates an endpoint. The answer has its signing secret, which is shown here only."""
    body = await bodies.read_object(request)
    endpoints = _endpoints(request)
    make = partial(endpoints.create, project, _create_fields(body), actor_of(request))
    show = partial(endpoints.show, project)
    return json_response(await app_state(request).creates.once(request, body, make, show))


async def retrieve_endpoint(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """One endpoint, with its state."""
    return json_response(await _endpoints(request).show(project, endpoint_id))


async def update_endpoint(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """Changes an endpoint; `enabled` enables or disables it."""
    fields = _update_fields(await bodies.read_object(request))
    changed = await _endpoints(request).update(project, endpoint_id, fields, actor_of(request))
    return json_response(changed)


async def delete_endpoint(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """Deletes an endpoint and its deliveries."""
    return json_response(await _endpoints(request).delete(project, endpoint_id, actor_of(request)))


async def rotate_secret(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """Gives an endpoint a new signing secret, which is shown here only."""
    body = await _optional_body(request)
    endpoints, overlap = _endpoints(request), _rotation_overlap(body)
    make = partial(endpoints.rotate, project, endpoint_id, overlap, actor_of(request))
    show = partial(endpoints.show, project)
    return json_response(await app_state(request).creates.once(request, body, make, show))


async def test_endpoint(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """Delivers a test event, and waits for the endpoint's answer."""
    sent = _tested_type(await _optional_body(request))
    state = app_state(request)
    request_record(request).at_end(Webhooks.of(request).tests.reserve(project.name).release)
    testing = _endpoints(request).test(project, endpoint_id, sent, actor_of(request))
    return json_response(await cancel_on_disconnect(testing, request.receive, state.grace_expired))


async def list_deliveries(endpoint_id: str, request: Request, project: NamedProject) -> Response:
    """The deliveries to an endpoint, the newest first."""
    state = choice(request, "status", DELIVERY_STATES)
    page = await _endpoints(request).deliveries(project, endpoint_id, state, paging(request))
    return await counted_json(request, page)


async def resend_event(
    endpoint_id: str, event_id: str, request: Request, project: NamedProject
) -> Response:
    """Delivers an event again, with the same id."""
    resent = await _endpoints(request).resend(project, endpoint_id, event_id, actor_of(request))
    return json_response(resent)


async def list_event_types(_key: Key) -> Response:
    """The types of events that an endpoint may get."""
    return json_response({"object": "list", "data": [event.value for event in EventType]})


_ROUTES: tuple[tuple[str, str, Callable[..., Awaitable[Response]]], ...] = (
    ("GET", "", list_endpoints),
    ("POST", "", create_endpoint),
    ("GET", "/{endpoint_id}", retrieve_endpoint),
    ("POST", "/{endpoint_id}", update_endpoint),
    ("DELETE", "/{endpoint_id}", delete_endpoint),
    ("POST", "/{endpoint_id}/rotate_secret", rotate_secret),
    ("POST", "/{endpoint_id}/test", test_endpoint),
    ("GET", "/{endpoint_id}/deliveries", list_deliveries),
    ("POST", "/{endpoint_id}/deliveries/{event_id}/resend", resend_event),
)
"""Method, path below that of the list, function."""
_PREFIXES = {
    "": "/v1/webhook_endpoints",
    ADMIN_SUFFIX: f"/v1/organization/projects/{{{_PROJECT_ID}}}/webhook_endpoints",
}
"""What the name of a route ends with -> the path of the list."""


def _make_router() -> APIRouter:
    made = APIRouter()
    made.add_api_route("/v1/webhook_event_types", list_event_types, methods=["GET"])
    for suffix, prefix in _PREFIXES.items():
        for method, path, function in _ROUTES:
            name = f"{function.__name__}{suffix}"
            made.add_api_route(prefix + path, function, methods=[method], name=name)
    return made


router = _make_router()


def _endpoints(request: Request) -> WebhookEndpoints:
    return Webhooks.of(request).endpoints


async def _optional_body(request: Request) -> dict[str, Any]:
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return {}
    return await bodies.read_object(request)


def _create_fields(body: dict[str, Any]) -> EndpointFields:
    """Of a create: `url`, and if they are wanted `name` and `event_types`."""
    bodies.require_known(body, ("name", "url", "event_types"))
    if body.get("url") is None:
        raise missing("url")
    return _fields(body)


def _update_fields(body: dict[str, Any]) -> EndpointFields:
    """Of an update: any of the same, and `enabled`."""
    bodies.require_known(body, ("name", "url", "event_types", "enabled"))
    return _fields(body)


def _rotation_overlap(body: dict[str, Any]) -> timedelta:
    """How long the old secret stays valid: `overlap_seconds`, or a day with
    `keep_old_secret_active_for_24_hours`; else no time."""
    bodies.require_known(body, ("overlap_seconds", "keep_old_secret_active_for_24_hours"))
    keep = bodies.boolean_field(body, "keep_old_secret_active_for_24_hours")
    seconds = bodies.integer_field(body, "overlap_seconds", minimum=0, maximum=MAX_OVERLAP)
    if seconds is None:
        seconds = _A_DAY if keep else 0
    return timedelta(seconds=seconds)


def _tested_type(body: dict[str, Any]) -> str | None:
    """`event_type` of a test."""
    bodies.require_known(body, ("event_type",))
    value = body.get("event_type")
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type("event_type", "a string", value)
    _require_types([value], "event_type")
    return value


def _fields(body: dict[str, Any]) -> EndpointFields:
    url = body.get("url")
    if url is not None and not isinstance(url, str):
        raise wrong_type("url", "a string", url)
    types = bodies.texts_field(body, "event_types")
    _require_types(types or [], "event_types")
    return EndpointFields(
        bodies.name_field(body, required=False), url, types, bodies.boolean_field(body, "enabled")
    )


def _require_types(types: list[str], param: str) -> None:
    known = [event.value for event in EventType]
    for name in types:
        if name not in known:
            raise InvalidRequest(
                f"Invalid value: '{name[:100]}'. Supported values are: {', '.join(known)}.",
                param=param,
                code="invalid_value",
            )


ROUTERS = (router,)
