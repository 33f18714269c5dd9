"""JSON responses, list envelopes, and the header that says when to ask again for what has not
ended, which the official SDK reads in its loops that poll."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from models.wire.events import Item

POLL_HEADER = "openai-poll-after-ms"
_SHORTEST = 1.0
_LONGEST = 10.0
_LONGEST_PAUSE = 60.0
"""Seconds. Before the end of a pause nothing changes, unless it is cancelled."""
_SHARE = 0.1
"""of the time that it has taken so far: so much later than its end is it seen, at most"""


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


def poll_after(age: float, pause: float | None = None) -> dict[str, str]:
    """The header. `age`: seconds since it was created. `pause`: seconds until it is tried again, if
    it waits for that."""
    wait = min(max(age * _SHARE, _SHORTEST), _LONGEST)
    if pause is not None:
        wait = max(wait, min(pause, _LONGEST_PAUSE))
    return {POLL_HEADER: str(round(wait * 1000))}
