"""A request's body, read within its limit before anything looks at it (design §9)."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from models.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from models.wire.json_input import decode_body

_MAX_DRAIN_BYTES = 256 * 1024 * 1024
_DRAIN_TIMEOUT = 5.0
_LARGE_BODY = 256 * 1024
"""Bytes from which a body is decoded beside the event loop: everybody else's streams would wait for it."""


async def read_json(request: Request, limit: int) -> Any:
    """The decoded JSON body. Raises UnsupportedMediaType, RequestTooLarge (before the body is read whole) or InvalidRequest."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(
            f"Unsupported content type: '{kind[:100]}'. Send 'Content-Type: application/json'."
        )
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            "Compressed request bodies are not supported. Send the body without Content-Encoding."
        )
    content_length = request.headers.get("content-length", "")
    if (
        content_length.isascii()
        and content_length.isdigit()
        and (len(content_length) > 18 or int(content_length) > limit)
    ):
        raise RequestTooLarge(limit)
    raw = await _read(request, limit)
    return await asyncio.to_thread(decode_body, raw) if len(raw) > _LARGE_BODY else decode_body(raw)


def is_large(headers: Mapping[str, str]) -> bool:
    """Whether a body is too large to be looked at in the event loop: a million items take ten seconds, and a lease is no longer than that."""
    content_length = headers.get("content-length", "")
    return not content_length.isdigit() or int(content_length) > _LARGE_BODY


async def _read(request: Request, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise RequestTooLarge(limit)
            pieces.append(piece)
    except ClientDisconnect:
        # Nobody hears this; but it is the client's doing, and no error of ours.
        raise InvalidRequest("The request body broke off.", code="invalid_json") from None
    request.state.body_read = True
    return b"".join(pieces)


async def drain(request: Request) -> None:
    """Before a refusal: lets the client finish sending what nobody has read, within bounds.

    Most hear an answer only then, and a connection closed earlier reads as a fault. One that waits to be asked for its body is not asked.
    """
    if getattr(request.state, "body_read", False) or "expect" in request.headers:
        return
    dropped = 0
    try:
        async with asyncio.timeout(_DRAIN_TIMEOUT):
            while dropped < _MAX_DRAIN_BYTES:
                message = await request.receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
