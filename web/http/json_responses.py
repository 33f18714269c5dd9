"""JSON responses and list envelopes."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from models.wire.events import Item


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


def list_envelope(items: list[Item], limit: int) -> dict[str, Any]:
    """OpenAI's list object with the first `limit` items; `has_more` if there are more than that."""
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
