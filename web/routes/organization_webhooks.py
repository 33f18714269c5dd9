"""/v1/organization/projects/{project_id}/webhook_endpoints: the webhooks of any project
(docs/webhooks.md). Only for keys with the scope `admin`.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from models.projects.policy import ProjectPolicy
from web.http.actor import actor_of
from web.http.auth import Admin
from web.http.body import json_object, read_json
from web.http.json_responses import json_response
from web.http.params import choice, paging
from web.state import app_state
from web.webhooks.bodies import create_fields, rotation_overlap, tested_type, update_fields
from web.webhooks.endpoints import DELIVERY_STATES, EndpointProject, WebhookEndpoints

# They are no part of the OpenAPI document: docs/webhooks.md describes them.
router = APIRouter(
    prefix="/v1/organization/projects/{project_id}/webhook_endpoints", include_in_schema=False
)


async def _any_project(project_id: str, request: Request, _key: Admin) -> EndpointProject:
    project = await app_state(request).organization.find_project(project_id)
    policy = ProjectPolicy.from_json(project.policy)
    return EndpointProject(project.id, project.name, policy.egress)


AnyProject = Annotated[EndpointProject, Depends(_any_project)]
"""The project that the path names, for a key with the scope `admin`."""


@router.get("")
async def list_endpoints(request: Request, project: AnyProject) -> Response:
    """The endpoints of a project, the newest first."""
    return json_response(await _endpoints(request).page(project, paging(request)))


@router.post("")
async def create_endpoint(request: Request, project: AnyProject) -> Response:
    """Creates an endpoint. The answer has its signing secret, which is shown here only."""
    fields = create_fields(await _body(request))
    return json_response(await _endpoints(request).create(project, fields, actor_of(request)))


@router.get("/{endpoint_id}")
async def retrieve_endpoint(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """One endpoint, with its state."""
    return json_response(await _endpoints(request).show(project, endpoint_id))


@router.post("/{endpoint_id}")
async def update_endpoint(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """Changes an endpoint; `enabled` enables or disables it."""
    fields = update_fields(await _body(request))
    changed = await _endpoints(request).update(project, endpoint_id, fields, actor_of(request))
    return json_response(changed)


@router.delete("/{endpoint_id}")
async def delete_endpoint(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """Deletes an endpoint and its deliveries."""
    return json_response(await _endpoints(request).delete(project, endpoint_id, actor_of(request)))


@router.post("/{endpoint_id}/rotate_secret")
async def rotate_secret(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """Gives an endpoint a new signing secret, which is shown here only."""
    overlap = rotation_overlap(await _optional_body(request))
    rotated = await _endpoints(request).rotate(project, endpoint_id, overlap, actor_of(request))
    return json_response(rotated)


@router.post("/{endpoint_id}/test")
async def test_endpoint(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """Delivers a test event, and waits for the endpoint's answer."""
    sent = tested_type(await _optional_body(request))
    result = await _endpoints(request).test(project, endpoint_id, sent, actor_of(request))
    return json_response(result)


@router.get("/{endpoint_id}/deliveries")
async def list_deliveries(endpoint_id: str, request: Request, project: AnyProject) -> Response:
    """The deliveries to an endpoint, the newest first."""
    state = choice(request, "status", DELIVERY_STATES)
    page = await _endpoints(request).deliveries(project, endpoint_id, state, paging(request))
    return json_response(page)


@router.post("/{endpoint_id}/deliveries/{event_id}/resend")
async def resend_event(
    endpoint_id: str, event_id: str, request: Request, project: AnyProject
) -> Response:
    """Delivers an event again, with the same id."""
    resent = await _endpoints(request).resend(project, endpoint_id, event_id, actor_of(request))
    return json_response(resent)


def _endpoints(request: Request) -> WebhookEndpoints:
    return app_state(request).webhook_endpoints


async def _optional_body(request: Request) -> dict[str, Any]:
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return {}
    return await _body(request)


async def _body(request: Request) -> dict[str, Any]:
    body = await read_json(request, app_state(request).body_limits)
    return json_object(body.value)
