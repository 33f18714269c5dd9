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
from web.http.connection import unless_gone
from web.http.json_responses import json_answer
from web.http.params import boolean, included, integer, paging
from web.responses.create import Accepted
from web.state import Front, front_of
from web.stream.obfuscation import as_wanted, obfuscated
from web.stream.sse import sse_answer

router = APIRouter(prefix="/v1/responses")

EVENT_NUMBERS = {"minimum": 0, "maximum": 2**31 - 1}
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}
"""Statuses of upstreams, and of tools' servers, whose error has a `type` of its own."""


@router.post("")
async def create(request: Request, project: Project) -> Response:
    """Creates a response: background or foreground, as JSON or as a stream."""
    front = front_of(request)
    body = await read_json(request, front.settings.limits.body)
    accepted = await front.intake.accept(project, body, request.headers)
    try:
        answer = await _answer(front, accepted, project, request)
    except ApiError as error:
        error.headers |= _cache_header(accepted)
        raise
    answer.headers.update(_cache_header(accepted))
    return answer


@router.get("/{response_id}")
async def retrieve(response_id: str, request: Request, project: Project) -> Response:
    """The response, or with `stream=true` its events above `starting_after`."""
    front = front_of(request)
    stream = boolean(request, "stream", default=False)
    padded = boolean(request, "include_obfuscation", default=False)
    after = integer(request, "starting_after", **EVENT_NUMBERS)
    include = included(request)
    row = await front.archive.find(project, response_id)
    if not stream:
        return json_answer(await front.archive.show(row, include))
    if not row["background"]:
        raise InvalidRequest(
            "This response cannot be streamed because it was not created with background=true.",
            param="stream",
            code="invalid_request_error",
        )
    frames = front.relay.follow(row["id"], -1 if after is None else after, background=True)
    return sse_answer(obfuscated(frames) if padded else frames, front.settings.web)


@router.delete("/{response_id}")
async def delete(response_id: str, request: Request, project: Project) -> Response:
    """Deletes the response and everything stored with it; one that runs is cancelled first."""
    archive = front_of(request).archive
    await archive.delete(project, await archive.find(project, response_id))
    return json_answer({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, request: Request, project: Project) -> Response:
    """Cancels a background response. A second time answers the same object."""
    archive = front_of(request).archive
    row = await archive.cancel(await archive.find(project, response_id))
    return json_answer(await archive.show(row))


@router.get("/{response_id}/input_items")
async def input_items(response_id: str, request: Request, project: Project) -> Response:
    """The response's own input, newest first unless `order=asc`."""
    wanted = paging(request)
    included(request)
    archive = front_of(request).archive
    return json_answer(await archive.input_items(await archive.find(project, response_id), wanted))


async def _answer(front: Front, accepted: Accepted, project: UUID, request: Request) -> Response:
    wanted = accepted.request
    if wanted.stream:
        return sse_answer(as_wanted(_stream(front, accepted), wanted), front.settings.web)
    if accepted.ended is not None:
        return json_answer(accepted.ended)
    if wanted.background and accepted.repeated:
        return json_answer(
            await front.archive.show(
                await front.archive.find(project, ids.response_id(accepted.id))
            )
        )
    if wanted.background:
        return json_answer(accepted.opening)
    return json_answer(await front.archive.show(await ended_row(front, accepted, request)))


def _cache_header(accepted: Accepted) -> dict[str, str]:
    """On every answer to a request that asked for a remembered one (docs/cache.md)."""
    return {} if accepted.cached is None else {"x-cache": "hit" if accepted.cached else "miss"}


async def _stream(front: Front, accepted: Accepted) -> AsyncGenerator[bytes]:
    """The stream of a new response. A foreground client that leaves takes its response along; a background one does not."""
    background = accepted.request.background
    finished = False
    try:
        async for frames in front.relay.follow(accepted.id, -1, background=background):
            yield frames
        finished = True
    finally:
        if not background and not finished and not accepted.repeated:
            front.abandon(accepted.id)


async def ended_row(front: Front, accepted: Accepted, request: Request) -> Row:
    """The row of a foreground response, once it has ended; cancelled when the client leaves first.

    Raises RunFailed when it failed before any output, Unavailable when this process stops first.
    """
    try:
        row = await unless_gone(front.relay.ended(accepted.id), request.receive, front.drained)
    except Unavailable:
        if not accepted.repeated:
            front.abandon(accepted.id)
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
        kind=KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
        code=failure.get("code"),
        param=failure.get("param"),
        retry_after=failure.get("retry_after"),
    )
