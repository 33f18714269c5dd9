"""JSON out."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def json_answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; `body` is anything orjson encodes."""
    return Response(orjson.dumps(body), status_code=status, headers=dict(headers or {}), media_type="application/json")
