"""`/v1/messages`: a request of Anthropic's API becomes a response like any other, and its output a
message (docs/messages.md)."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from features.compact_and_count.routes import COUNT_HEADER, NOT_COUNTED
from features.messages.answer import empty_message, error_body, message_of, status_of
from features.messages.events import PING, MessageStream, has_output
from features.messages.request import MessageRequest, count_request, message_request
from models.config.routes import accepted_parameters
from models.db.queries.api_keys import ApiKey
from models.errors import (
    ApiError,
    ClientDisconnected,
    InvalidRequest,
    ServerStopping,
    Unavailable,
)
from models.ids import response_id
from models.lifecycle import Status
from models.projects.quotas import CHARACTERS_PER_TOKEN
from models.wire.json_input import inline_size
from models.wire.purpose import Purpose
from models.wire.token_counts import COUNTED_BY
from models.wire.without_effect import header_of
from web.admission import AdmittedBody
from web.http.auth import Key
from web.http.body import JsonBody, drain, held_bytes
from web.http.connection import wait_for_disconnect
from web.http.errors import as_api_error, find_upstreams
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.responses.create import AcceptedResponse, CreateOptions
from web.routes.foreground import answered_request, wait_for_completion, wait_for_response
from web.routes.responses import stream_events
from web.state import AppState, app_state
from web.stream.sse import StreamBroken, sse_response

BACKGROUND_HEADER = "x-backburner-background"
"""A request with it is answered at once, with the id of a background response."""


class MessagesRoute(APIRoute):
    """A route whose errors all have Anthropic's form."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """What answers the requests of this route."""
        answer = super().get_route_handler()

        async def respond(request: Request) -> Response:
            record = request_record(request)
            try:
                response = await answer(request)
            except Exception as error:  # noqa: BLE001  (every error becomes a response)
                response = await _error_response(request, as_api_error(error, request.url.path))
            response.headers["request-id"] = record.id
            return response

        return respond


router = APIRouter(prefix="/v1/messages", route_class=MessagesRoute)


@router.post("")
async def create_message(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Creates a response, and answers with its message: as JSON or as a stream, or in the
    background with an empty message that has its id."""
    state, record = app_state(request), request_record(request)
    translated = await _translate(state, request, key, body)
    body.value = translated.body
    estimate = await _estimate_input(body)
    options = CreateOptions(record.id, stop=tuple(translated.stop))
    accepted = await state.create_response.create(key, body, request.headers, options)
    record.note_response(accepted.id)
    try:
        response = await _answer(state, accepted, request, translated, estimate)
    except ApiError as error:
        state.record_answer(accepted, answered_request(request, error))
        raise
    response.headers.update(header_of([*translated.ignored, *accepted.request.ignored]))
    return response


@router.post("/count_tokens")
async def count_message_tokens(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Counts the input tokens of a message."""
    state, record = app_state(request), request_record(request)
    body.value = await body.run(partial(count_request, body.value))
    options = CreateOptions(record.id, purpose=Purpose.COUNT)
    accepted = await state.create_response.create(key, body, request.headers, options)
    record.note_response(accepted.id)
    usage = (await wait_for_completion(state, accepted, request, NOT_COUNTED)).usage
    if usage is None:
        raise ApiError(NOT_COUNTED)
    counted = {"input_tokens": usage["input_tokens"]}
    return json_response(counted, headers={COUNT_HEADER: usage[COUNTED_BY]})


async def _translate(
    state: AppState, request: Request, key: ApiKey, body: JsonBody
) -> MessageRequest:
    model = body.value.get("model") if type(body.value) is dict else None
    upstreams = find_upstreams(state.routes_of(key), model) if type(model) is str else ()
    passed = accepted_parameters(upstreams)
    background = _wants_background(request)
    work = partial(message_request, body.value, passed, background=background)
    translated = await body.run(work)
    if translated.stop and upstreams and upstreams[0].upstream.api == "responses":
        translated.ignored.append("stop_sequences")  # the Responses API has no field for them
    return translated


def _wants_background(request: Request) -> bool:
    value = request.headers.get(BACKGROUND_HEADER, "false").lower()
    if value not in ("true", "false"):
        message = f"Invalid '{BACKGROUND_HEADER}': expected 'true' or 'false'."
        raise InvalidRequest(message, param=BACKGROUND_HEADER, code="invalid_value")
    return value == "true"


async def _estimate_input(body: JsonBody) -> int:
    """About how many tokens the input has. A stream begins with a number, and Claude Code measures
    by it how full its context is."""
    inline = await body.run(partial(inline_size, body.value))
    return math.ceil((body.size - inline) / CHARACTERS_PER_TOKEN)


async def _answer(
    state: AppState,
    accepted: AcceptedResponse,
    request: Request,
    translated: MessageRequest,
    estimate: int,
) -> Response:
    model, public_id = accepted.request.model, response_id(accepted.id)
    if accepted.request.stream:
        stream = MessageStream(
            public_id, model, estimate, translated.thinking, request_record(request).id
        )
        return await _stream_response(state, accepted, request, stream)
    if accepted.request.background:
        state.record_answer(accepted, request)
        return json_response(empty_message(public_id, model))
    row = await wait_for_response(state, accepted, request)
    if row.status == Status.CANCELLED:
        raise Unavailable("The response was cancelled. Please retry.")
    if row.status == Status.FAILED:
        raise ApiError(row.error["message"] if row.error else "The response failed.")
    shown = await state.response_store.show_ended(
        accepted.project, row, hold=partial(held_bytes, request)
    )
    state.record_answer(accepted, request)
    return json_response(message_of(shown, translated.thinking))


async def _stream_response(
    state: AppState, accepted: AcceptedResponse, request: Request, stream: MessageStream
) -> Response:
    """The stream of a message. Its head waits for the first output, for as long as between two
    pings: clients retry after a status, but hardly after an event. Raises what has failed before
    that."""
    events = stream_events(state, accepted, request)
    opening: list[bytes] = []
    reading = asyncio.ensure_future(_read_opening(events, opening))
    try:
        await _wait_for_output(reading, request, state.settings.web.ping.total_seconds())
        if reading.done():
            await _require_begun(state, accepted, request, opening)
    except BaseException:
        reading.cancel()
        await asyncio.wait({reading})
        await events.aclose()
        if accepted.on_stream_end is not None:
            accepted.on_stream_end()
        raise
    frames = _message_frames(events, reading, opening, stream)
    return sse_response(frames, state.settings.web, accepted.on_stream_end, keep_alive=PING)


async def _wait_for_output(reading: asyncio.Future[None], request: Request, seconds: float) -> None:
    """Waits for the end of `reading`, and not for longer than this. Raises ClientDisconnected."""
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    both = {reading, leaving}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    if leaving in done:
        raise ClientDisconnected


async def _require_begun(
    state: AppState, accepted: AcceptedResponse, request: Request, opening: list[bytes]
) -> None:
    """`opening`: all up to the first output. Raises what has ended the response before that."""
    if not opening or not has_output(opening[-1]):
        raise ServerStopping
    if b"\nevent: response.failed\n" in b"\n" + opening[-1]:
        await wait_for_response(state, accepted, request)


async def _read_opening(events: AsyncGenerator[bytes], opening: list[bytes]) -> None:
    """Adds the blocks of events up to the first output to `opening`."""
    async for frames in events:
        opening.append(frames)
        if has_output(frames):
            return


async def _message_frames(
    events: AsyncGenerator[bytes],
    reading: asyncio.Future[None],
    opening: list[bytes],
    stream: MessageStream,
) -> AsyncGenerator[bytes]:
    """The message's events. `reading` fills `opening`; `events` has what follows. Raises
    StreamBroken if they end without their end."""
    try:
        async with aclosing(events):
            yield stream.start()
            await reading
            for frames in opening:
                if translated := stream.feed(frames):
                    yield translated
            opening.clear()
            while not stream.has_ended and (frames := await anext(events, b"")):
                if translated := stream.feed(frames):
                    yield translated
                del frames  # as in web/stream/sse.py
            if stream.is_broken or not stream.has_ended:
                raise StreamBroken
    finally:
        reading.cancel()


async def _error_response(request: Request, error: ApiError) -> Response:
    record = request_record(request)
    record.note_error(error)
    await drain(request)
    headers = {"x-should-retry": "false"} if error.status == 500 else {}
    body: dict[str, Any] = error_body(error, record.id)
    return json_response(body, status=status_of(error), headers=headers | error.headers)


ROUTERS = (router,)
