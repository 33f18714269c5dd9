"""JSON responses, list envelopes, and the header that says when to ask again for what has not
ended, which the official SDK reads in its loops that poll."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from models.wire.events import Item

POLL_HEADER = "openai-poll-after-ms"
SHORTEST_POLL = 1.0
"""Seconds after which it is worth asking again for what has just begun."""


def json_response(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response; `body` is anything orjson encodes, or bytes that are JSON already."""
    return Response(
        body if type(body) is bytes else orjson.dumps(body),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )


def list_envelope(items: list[Item], *, has_more: bool = False) -> dict[str, Any]:
    """OpenAI's list object with these items."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def poll_after(seconds: float) -> dict[str, str]:
    """The header: ask again in so many seconds."""
    return {POLL_HEADER: str(round(seconds * 1000))}
