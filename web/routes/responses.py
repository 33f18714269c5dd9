"""/v1/responses: a few lines a route: parse, call, present."""

from collections.abc import AsyncGenerator
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from models import ids
from models.db.database import Row
from models.errors import ApiError, InvalidRequest, RunFailed, Unavailable
from models.lifecycle import Status
from web.http.auth import Project
from web.http.body import read_json
from web.http.connection import cancel_on_disconnect
from web.http.json_responses import json_response
from web.http.params import boolean, integer, paging, parse_include
from web.responses.create import AcceptedResponse
from web.state import AppState, app_state
from web.stream.obfuscation import obfuscate, obfuscate_if_requested
from web.stream.sse import sse_response

router = APIRouter(prefix="/v1/responses")

EVENT_NUMBERS = {"minimum": 0, "maximum": 2**31 - 1}
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}
"""Statuses of upstreams, and of tools' servers, whose error has a `type` of its own."""


@router.post("")
async def create(request: Request, project: Project) -> Response:
    """Creates a response: background or foreground, as JSON or as a stream."""
    state = app_state(request)
    body = await read_json(request, state.settings.limits.body)
    accepted = await state.create_response.create(project, body, request.headers)
    try:
        answer = await _build_response(state, accepted, project, request)
    except ApiError as error:
        error.headers |= _cache_header(accepted)
        raise
    answer.headers.update(_cache_header(accepted))
    return answer


@router.get("/{response_id}")
async def retrieve(response_id: str, request: Request, project: Project) -> Response:
    """The response, or with `stream=true` its events above `starting_after`."""
    state = app_state(request)
    stream = boolean(request, "stream", default=False)
    padded = boolean(request, "include_obfuscation", default=False)
    after = integer(request, "starting_after", **EVENT_NUMBERS)
    include = parse_include(request)
    row = await state.response_store.find(project, response_id)
    if not stream:
        return json_response(await state.response_store.show(row, include))
    if not row["background"]:
        raise InvalidRequest(
            "This response cannot be streamed because it was not created with background=true.",
            param="stream",
            code="invalid_request_error",
        )
    frames = state.event_reader.follow(row["id"], -1 if after is None else after, background=True)
    return sse_response(obfuscate(frames) if padded else frames, state.settings.web)


@router.delete("/{response_id}")
async def delete(response_id: str, request: Request, project: Project) -> Response:
    """Deletes the response and everything stored with it; one that runs is cancelled first."""
    archive = app_state(request).response_store
    await archive.delete(project, await archive.find(project, response_id))
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, request: Request, project: Project) -> Response:
    """Cancels a background response. A second time answers the same object."""
    archive = app_state(request).response_store
    row = await archive.cancel(await archive.find(project, response_id))
    return json_response(await archive.show(row))


@router.get("/{response_id}/input_items")
async def input_items(response_id: str, request: Request, project: Project) -> Response:
    """The response's own input, newest first unless `order=asc`."""
    page_query = paging(request)
    parse_include(request)
    archive = app_state(request).response_store
    return json_response(
        await archive.input_items(await archive.find(project, response_id), page_query)
    )


async def _build_response(
    state: AppState, accepted: AcceptedResponse, project: UUID, request: Request
) -> Response:
    create_request = accepted.request
    if create_request.stream:
        return sse_response(
            obfuscate_if_requested(_stream(state, accepted), create_request), state.settings.web
        )
    if accepted.final_object is not None:
        return json_response(accepted.final_object)
    if create_request.background and accepted.is_repeat:
        return json_response(
            await state.response_store.show(
                await state.response_store.find(project, ids.response_id(accepted.id))
            )
        )
    if create_request.background:
        return json_response(accepted.initial_object)
    return json_response(
        await state.response_store.show(await wait_for_response(state, accepted, request))
    )


def _cache_header(accepted: AcceptedResponse) -> dict[str, str]:
    """On every answer to a request that asked for a remembered one (docs/cache.md)."""
    return (
        {} if accepted.cache_hit is None else {"x-cache": "hit" if accepted.cache_hit else "miss"}
    )


async def _stream(state: AppState, accepted: AcceptedResponse) -> AsyncGenerator[bytes]:
    """The stream of a new response. A foreground client that leaves takes its response along; a background one does not."""
    background = accepted.request.background
    finished = False
    try:
        async for frames in state.event_reader.follow(accepted.id, -1, background=background):
            yield frames
        finished = True
    finally:
        if not background and not finished and not accepted.is_repeat:
            state.cancel_abandoned(accepted.id)


async def wait_for_response(state: AppState, accepted: AcceptedResponse, request: Request) -> Row:
    """The row of a foreground response, once it has ended; cancelled when the client leaves first.

    Raises RunFailed when it failed before any output, Unavailable when this process stops first.
    """
    try:
        row = await cancel_on_disconnect(
            state.event_reader.wait_until_ended(accepted.id), request.receive, state.grace_expired
        )
    except Unavailable:
        if not accepted.is_repeat:
            state.cancel_abandoned(accepted.id)
        raise
    if row is None:
        raise ApiError("The server could not finish this response.")
    if row["status"] == Status.FAILED and row["failure"] is not None:
        raise _failure(row)
    return row


def _failure(row: Row) -> RunFailed:
    """What a foreground client sees of a run that failed before any output (design §4.9)."""
    failure = row["failure"]
    status = failure["status"]
    return RunFailed(
        status,
        row["error"]["message"],
        kind=ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        code=failure.get("code"),
        param=failure.get("param"),
        retry_after=failure.get("retry_after"),
    )
