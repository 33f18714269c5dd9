"""Batches as clients see them: the object, the requests that make one, and the lines of output."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from features.batches.queries import BatchRow
from models.ids import batch_id, file_id
from models.wire.events import in_one_line

_WINDOW = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_window(text: str) -> timedelta | None:
    """The duration of a `completion_window`: `24h`, as OpenAI has it, or another number of seconds,
    minutes, hours or days. None: it is none."""
    found = _WINDOW.fullmatch(text)
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def batch_object(row: BatchRow) -> dict[str, Any]:
    """The Batch object as JSON."""
    ended = {f"{status}_at": None for status in ("completed", "failed", "expired", "cancelled")}
    if row.ended_at is not None:
        ended[f"{row.status}_at"] = row.ended_at  # type: ignore[assignment]
    errors = None if row.errors is None else {"object": "list", "data": row.errors}
    return {
        "id": batch_id(row.id),
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": errors,
        "input_file_id": file_id(row.input_file_id),
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": None if row.output_file_id is None else file_id(row.output_file_id),
        "error_file_id": None if row.error_file_id is None else file_id(row.error_file_id),
        "created_at": row.created_at,
        "in_progress_at": row.in_progress_at,
        "expires_at": row.expires_at,
        "finalizing_at": row.finalizing_at,
        "cancelling_at": row.cancelling_at,
        **ended,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": row.metadata,
    }


def answered_line(request: UUID, custom_id: str, status: int, body: Any) -> bytes:
    """A line of the output or error file: the answer to a request. `request`: names it."""
    response = {"status_code": status, "request_id": f"req_{request.hex}", "body": body}
    return _line(request, custom_id, response, None)


def unanswered_line(request: UUID, custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file: the request has no answer."""
    return _line(request, custom_id, None, {"code": code, "message": message})


def _line(request: UUID, custom_id: str, response: Any, error: Any) -> bytes:
    line = {
        "id": f"batch_req_{request.hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return in_one_line(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
