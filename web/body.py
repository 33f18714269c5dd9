"""A request's body, read within its limit before anything looks at it (design §9)."""

from typing import Any

from fastapi import Request

from models.errors import RequestTooLarge, UnsupportedMediaType
from models.wire.json_input import decode_body


async def read_json(request: Request, limit: int) -> Any:
    """The decoded JSON body. Raises UnsupportedMediaType, RequestTooLarge (before the body is read whole) or InvalidRequest."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(f"Unsupported content type: '{kind[:100]}'. Send 'Content-Type: application/json'.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Compressed request bodies are not supported. Send the body without Content-Encoding.")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        raise RequestTooLarge(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise RequestTooLarge(limit)
        pieces.append(piece)
    return decode_body(b"".join(pieces))
