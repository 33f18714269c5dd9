"""/v1/responses."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from models import ids
from models.db.queries.api_keys import ApiKey
from models.errors import ApiError, InvalidRequest
from models.redis.quota_counters import Demand
from models.wire.events import DONE
from models.wire.request import is_prewarm
from models.wire.without_effect import header_of
from web.admission import AdmittedBody, admitted_body
from web.http.auth import Key, Project
from web.http.body import JsonBody, held_bytes
from web.http.json_responses import SHORTEST_POLL, json_response, poll_after
from web.http.params import boolean, integer, paging, parse_include
from web.http.request_record import actor_of, request_record
from web.responses.create import AcceptedResponse, CreateOptions
from web.routes.direct import DirectRoute
from web.routes.foreground import answered_request, wait_for_response
from web.state import AppState, app_state
from web.stream.sse import obfuscate, obfuscate_if_requested, sse_response

router = APIRouter(prefix="/v1/responses")

_RESPONSE_PATH = re.compile(f"{router.prefix}/{ids.RESPONSE_ID_PATTERN}")
_RESPONSE_TEMPLATE = f"{router.prefix}/{{response_id}}"

_ONE_STREAM = Demand(requests=0, open_streams=1)
EVENT_NUMBERS = {"minimum": 0, "maximum": 2**31 - 1}


def direct_route(method: str, path: str) -> DirectRoute | None:
    """The route with a parameter that serves this request directly (web/routes/direct.py). None: it
    is a request for another one."""
    if method == "GET" and _RESPONSE_PATH.fullmatch(path):
        return DirectRoute(_RESPONSE_TEMPLATE, partial(retrieve, path.rpartition("/")[2]))
    return None


@router.post("")
async def create(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Creates a response: background or foreground, as JSON or as a stream."""
    options = CreateOptions(
        request.scope["request_id"], generate=not is_prewarm(body.value), takes_steers=True
    )
    return await create_and_answer(request, key, body, options)


async def create_and_answer(
    request: Request, key: ApiKey, body: JsonBody, options: CreateOptions
) -> Response:
    """The answer to a create, once it is known. Raises what `CreateResponse.create` raises, and the
    error of a foreground response that has failed."""
    state = app_state(request)
    accepted = await state.create_response.create(key, body, request.headers, options)
    request_record(request).note_response(accepted.id)
    try:
        response = await _build_response(state, accepted, key.project_id, request)
    except ApiError as error:
        state.record_answer(accepted, answered_request(request, error))
        error.headers |= _own_headers(accepted)
        raise
    response.headers.update(_own_headers(accepted))
    return response


DIRECT = {("POST", router.prefix): DirectRoute(router.prefix, create, admitted_body)}
"""The routes without parameters that are called directly, by method and path."""


@router.get("/{response_id}")
async def retrieve(response_id: str, request: Request, key: Key) -> Response:
    """The response, or with `stream=true` its events above `starting_after`."""
    state, project = app_state(request), key.project_id
    stream = boolean(request, "stream", default=False)
    obfuscated = boolean(request, "include_obfuscation", default=False)
    after = integer(request, "starting_after", **EVENT_NUMBERS)
    include = parse_include(request)
    if not stream:
        hold = partial(held_bytes, request)
        shown = await state.response_store.show(project, response_id, include, hold=hold)
        return json_response(shown.body, headers=shown.headers)
    row = await state.response_store.find(project, response_id)
    if not row.background:
        raise InvalidRequest(
            "This response cannot be streamed because it was not created with background=true.",
            param="stream",
            code="invalid_request_error",
        )
    state.count_stream(request)
    admission = await state.quotas.admit_if_limited(key, _ONE_STREAM)
    frames = state.event_reader.follow(
        row.id, -1 if after is None else after, background=True, held=held_bytes(request)
    )
    return sse_response(
        obfuscate(frames) if obfuscated else frames,
        state.settings.web,
        None if admission is None else admission.end_connection,
    )


@router.delete("/{response_id}")
async def delete(response_id: str, request: Request, project: Project) -> Response:
    """Deletes the response and everything stored with it; an open one is cancelled first."""
    store = app_state(request).response_store
    row = await store.find(project, response_id)
    await store.delete(project, row, actor_of(request))
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, request: Request, project: Project) -> Response:
    """Cancels a background response. A second cancel returns the same object."""
    store = app_state(request).response_store
    await store.cancel(await store.find_row(project, response_id), actor_of(request))
    hold = partial(held_bytes, request)
    shown = await store.show(project, response_id, hold=hold)
    return json_response(shown.body, headers=shown.headers)


@router.get("/{response_id}/input_items")
async def input_items(response_id: str, request: Request, project: Project) -> Response:
    """The response's input items, newest first unless `order=asc`."""
    page_query = paging(request)
    parse_include(request)
    store = app_state(request).response_store
    row = await store.find(project, response_id)
    return json_response(await store.input_items(project, row, page_query, held_bytes(request)))


async def _build_response(
    state: AppState, accepted: AcceptedResponse, project: UUID, request: Request
) -> Response:
    create_request = accepted.request
    if create_request.stream:
        return sse_response(
            obfuscate_if_requested(stream_events(state, accepted, request), create_request),
            state.settings.web,
            accepted.on_stream_end,
        )
    if accepted.final_object is not None:
        return await _json(state, accepted, request, accepted.final_object)
    if create_request.background and not accepted.is_repeat:
        return await _json(
            state, accepted, request, accepted.initial_object, poll_after(SHORTEST_POLL)
        )
    hold = partial(held_bytes, request)
    if create_request.background:
        public_id = ids.response_id(accepted.id)
        shown = await state.response_store.show(project, public_id, hold=hold)
        return await _json(state, accepted, request, shown.body, shown.headers)
    row = await wait_for_response(state, accepted, request)
    return await _json(
        state, accepted, request, await state.response_store.show_ended(project, row, hold=hold)
    )


def _own_headers(accepted: AcceptedResponse) -> dict[str, str]:
    """The header of every reply to a request with `cache` (docs/cache.md), that of one whose tools
    were left out (docs/tools.md), and that which names what has no effect."""
    headers = header_of(accepted.request.ignored)
    if accepted.cache_hit is not None:
        headers["x-cache"] = "hit" if accepted.cache_hit else "miss"
    if accepted.request.omitted_tools:
        headers["x-omitted-tools"] = ", ".join(accepted.request.omitted_tools)
    return headers


async def _json(
    state: AppState,
    accepted: AcceptedResponse,
    request: Request,
    body: dict[str, Any] | bytes,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """The answer to a request without `stream`. After it was sent, it is recorded as answered."""

    async def record_answer() -> None:
        state.record_answer(accepted, request)

    response = json_response(body, headers=headers)
    if accepted.is_from_sdk:
        response.background = BackgroundTask(record_answer)
    return response


async def stream_events(
    state: AppState, accepted: AcceptedResponse, request: Request
) -> AsyncGenerator[bytes]:
    """The events of a new response.

    If the client disconnects, a foreground response is cancelled, unless a retry has joined it; a
    background one is not.
    """
    background = accepted.request.background
    # A foreground response is cancelled with its connection, and the retry gets another one.
    state.record_answer(accepted, request if background else None)
    finished = False
    events = state.event_reader.follow(
        accepted.id,
        -1,
        background=background,
        known=accepted.known_events,
        held=held_bytes(request),
    )
    try:
        async with aclosing(events):
            async for frames in events:
                finished = frames.endswith(DONE)
                yield frames
                del frames  # as in web/stream/sse.py
    finally:
        if not background and not finished:
            state.cancel_abandoned(accepted)
