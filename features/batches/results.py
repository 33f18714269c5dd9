"""The results of a batch's requests, as lines of its output file and its error file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import orjson

from features.batches.queries import EndedResponse, ReadyLine
from models.ids import new_uuid
from models.lifecycle import Status
from models.shown_responses import shown_object
from models.wire.events import in_one_line
from models.wire.purpose import answered_body

_ENDINGS: Final = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": (
        "batch_cancelled",
        "The batch was cancelled before this request was executed.",
    ),
    "failed": ("batch_failed", "The batch failed before this request was executed."),
}
"""Terminal status of a batch -> code and message of its requests that were not executed."""
_DELETED: Final = ("response_deleted", "The response was deleted before the batch had ended.")
_CANCELLED: Final = ("response_cancelled", "The response to this request was cancelled.")
_ERROR_TYPES = {
    401: "authentication_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}


_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(slots=True)
class Results:
    """Lines for the two files, and what they add to the counts of the batch."""

    output: list[bytes] = field(default_factory=list)
    error: list[bytes] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    """as a batch counts them"""

    def add_usage(self, usage: dict[str, Any]) -> None:
        """Adds the tokens of one response."""
        cached = (usage.get("input_tokens_details") or {}).get("cached_tokens")
        reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens")
        self.tokens["input_tokens"] += usage.get("input_tokens") or 0
        self.tokens["output_tokens"] += usage.get("output_tokens") or 0
        self.tokens["cached_tokens"] += cached or 0
        self.tokens["reasoning_tokens"] += reasoning or 0


def results_of(
    lines: Sequence[ReadyLine], responses: Mapping[UUID, EndedResponse], ending: str | None
) -> Results:
    """The results of these lines. `responses`: those that the lines name, without deleted ones;
    `ending`: the terminal status that the batch will have, if it is not `completed`. Too slow for
    an event loop."""
    results = Results()
    for line in lines:
        _add(results, line, responses, ending)
    return results


def _add(
    results: Results,
    line: ReadyLine,
    responses: Mapping[UUID, EndedResponse],
    ending: str | None,
) -> None:
    if line.error is not None:
        status, body = line.error["status"], line.error["body"]
        results.error.append(answered_line(new_uuid(), line.custom_id, status, body))
        return
    if line.response_id is None:
        results.error.append(unanswered_line(new_uuid(), line.custom_id, *_ENDINGS[ending or ""]))
        return
    response = responses.get(line.response_id)
    if response is None:
        results.error.append(unanswered_line(line.response_id, line.custom_id, *_DELETED))
        return
    results.add_usage(response.usage or {})
    if response.status in (Status.COMPLETED, Status.INCOMPLETE):
        items = response.items or []
        body = answered_body(items) or shown_object(response, items)
        results.output.append(answered_line(response.id, line.custom_id, 200, body))
    elif response.status == Status.CANCELLED:
        reason = _CANCELLED if ending is None else _ENDINGS[ending]
        results.error.append(unanswered_line(response.id, line.custom_id, *reason))
    else:
        results.error.append(_failed(response, line.custom_id))


def _failed(response: EndedResponse, custom_id: str) -> bytes:
    """The answer that a foreground request would have had."""
    error, failure = response.error or {}, response.failure or {}
    code = failure.get("code") or error.get("code")
    status = failure.get("status") or (429 if code == "rate_limit_exceeded" else 500)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {
        "error": {
            "message": error.get("message") or "",
            "type": kind,
            "param": failure.get("param"),
            "code": code,
        }
    }
    return answered_line(response.id, custom_id, status, body)


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
