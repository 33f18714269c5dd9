"""The text frames of a WebSocket: creates, steers, events and errors (docs/websocket.md)."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import orjson

from models.errors import ApiError, InvalidRequest
from models.ids import parse_response_id
from models.load.budget import Reservation
from models.wire.checks.basic import Boolean
from models.wire.checks.faults import missing, not_an_object, unsupported_value, wrong_type
from models.wire.json_input import BodyLimits, decode_request
from models.wire.request import is_prewarm
from web.http.body import UNCOUNTED_BYTES, JsonBody, decoding_cost, run_sized

CREATE = "response.create"
STEER = "response.steer"
_BOOLEAN = Boolean()
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


@dataclass(slots=True)
class CreateFrame:
    """A `response.create`: the body of the equivalent POST, and fields that only a socket has."""

    body: dict[str, Any]
    size: int
    """bytes of the frame"""
    stream_id: str | None
    """Creates of one stream run in their order. None: the stream without an id."""
    generate: bool
    """False: a warm-up."""
    held: Reservation
    """What the frame has of the process's memory for bodies."""
    previous: UUID | None = None
    """The response that it continues; None: none, or the name of none."""
    _raw: tuple[bytes, BodyLimits] | None = None
    """The frame while it waits."""

    def keep_raw(self, raw: bytes, limits: BodyLimits) -> None:
        """The create may wait for hours. Until its turn it keeps its bytes instead of the body,
        which may need forty times as much."""
        self.body = {}
        self._raw = raw, limits
        self.held.resize(len(raw) if len(raw) > UNCOUNTED_BYTES else 0)

    async def take_body(self) -> JsonBody:
        """The body. The frame does not keep it: its response may run for hours. Raises ShareUsedUp
        or Unavailable if there is no memory for a body that has waited."""
        if self._raw is not None:
            (raw, limits), self._raw = self._raw, None
            try:
                again = await read_frame(raw, limits, self.held)
            except FrameRefused as refused:
                raise refused.error from None
            assert isinstance(again, CreateFrame)
            self.body = again.body
        body, self.body = self.body, {}
        return JsonBody(body, self.size, self.held)


@dataclass(slots=True)
class SteerFrame:
    """A `response.steer`: input for a response of this connection that runs."""

    fields: dict[str, Any]
    """without `type`"""
    size: int
    """bytes of the frame"""
    held: Reservation
    """as of a create"""


class FrameRefused(Exception):
    """A frame with an error. Its stream, and the response that it continues, if they could be read
    and the frame itself is at fault."""

    def __init__(
        self, error: ApiError, stream_id: str | None, previous: UUID | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.stream_id = stream_id
        self.previous = previous


async def read_frame(raw: bytes, limits: BodyLimits, held: Reservation) -> CreateFrame | SteerFrame:
    """What a text frame has, for which `held` has memory then. Raises FrameRefused."""
    try:
        await held.grow(await decoding_cost(raw, limits))
    except ApiError as error:
        raise FrameRefused(error, None) from None
    return await run_sized(partial(_parse_frame, raw, limits, held), len(raw))


def _parse_frame(raw: bytes, limits: BodyLimits, held: Reservation) -> CreateFrame | SteerFrame:
    stream_id = previous = None
    try:
        payload = decode_request(raw, limits)
        if type(payload) is not dict:
            raise not_an_object(payload, "frame")
        if payload.get("type") == STEER:
            del payload["type"]
            return SteerFrame(payload, len(raw), held)
        named = payload.get("previous_response_id")
        previous = parse_response_id(named) if type(named) is str else None
        stream_id = _stream_id(payload.pop("stream_id", None))
        _require_create(payload.pop("type", None))
        return CreateFrame(
            _post_body(payload), len(raw), stream_id, _generate(payload), held, previous
        )
    except ApiError as error:
        raise FrameRefused(error, stream_id, previous) from None


def error_frame(error: ApiError, stream_id: str | None) -> str:
    """The error as a frame, with the status and headers that a POST would get."""
    error_object = error.body()["error"]
    if error.headers:
        error_object["headers"] = error.headers
    stream = {} if stream_id is None else {"stream_id": stream_id}
    return orjson.dumps(
        {"type": "error", "status": error.status, **stream, "error": error_object}
    ).decode()


def steer_frame(outcome: str, number: int, stream_id: str | None, **fields: Any) -> str:
    """The event `response.steer.<outcome>` as a frame."""
    stream = {} if stream_id is None else {"stream_id": stream_id}
    event = {"type": f"{STEER}.{outcome}", "sequence_number": number, **fields, **stream}
    return orjson.dumps(event).decode()


def event_frame(event: bytes, stream_id: str | None) -> str:
    """One SSE frame as a text frame: its JSON unchanged, and the id of its stream if it has one."""
    text = event[event.index(b"\ndata: ") + 7 : -2]
    if stream_id is not None:
        text = b'%b,"stream_id":"%b"}' % (text[:-1], stream_id.encode())
    return text.decode()


def _stream_id(value: Any) -> str | None:
    if value is None or (type(value) is str and _STREAM_ID.fullmatch(value)):
        return value
    raise InvalidRequest(
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only "
        "contain letters, numbers, underscores, hyphens, and periods.",
        param="stream_id",
        code="invalid_stream_id",
    )


def _require_create(kind: Any) -> None:
    if kind is None:
        raise missing("type")
    if type(kind) is not str:
        raise wrong_type("type", "a string", kind)
    if kind != CREATE:
        raise unsupported_value("type", kind, (CREATE, STEER))


def _generate(payload: dict[str, Any]) -> bool:
    """Whether the model is to be called. `prompt_cache_options.prewarm` overrides `generate`."""
    if is_prewarm(payload):
        return False
    generate = payload.pop("generate", None)
    return generate is None or _BOOLEAN(generate, "generate")


def _post_body(payload: dict[str, Any]) -> dict[str, Any]:
    """The body of the equivalent POST.

    Over a socket everything is streamed, so `stream` has no effect.
    """
    stream, background = payload.pop("stream", None), payload.pop("background", None)
    if stream is not None:
        _BOOLEAN(stream, "stream")
    if background is not None and _BOOLEAN(background, "background"):
        message = "'background' is not supported over WebSocket. Use POST /v1/responses."
        raise InvalidRequest(message, param="background", code="unsupported_parameter")
    payload["stream"] = True
    return payload
