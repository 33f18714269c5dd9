"""A payload of a native upstream's stream becomes one `UpstreamEvent`. Only this module knows the
differences between servers.

Deltas, which are most events, are read by msgspec's typed decoder. All other events are read like a
client's body, because they are stored and shown as the upstream sent them: JSON that cannot be
encoded again, or is nested too deeply, is refused.
"""

import json
import re
from dataclasses import replace
from typing import Any

import msgspec

from models.errors import InvalidRequest, UpstreamFailed
from models.wire.checks.basic import without_nulls
from models.wire.events import Item
from models.wire.json_input import clean_text, decode_body
from models.wire.response import unknown_response_fields
from models.wire.token_counts import TokenCounts, read_counts, unknown_counts
from worker.translation.upstream_events import TerminalState, UpstreamEvent
from worker.upstream.chat_chunks import logprobs_of
from worker.upstream.error_rules import failure_in, failure_of_error, failure_of_text
from worker.upstream.finish_reasons import finish_reason
from worker.upstream.lenient_json import SurrogateHalves

_START_EVENTS = frozenset(("response.created", "response.queued", "response.in_progress"))
_STATUS_BY_END_EVENT = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.canceled": "cancelled",
}
_SERVER_ERROR_CODES = frozenset(
    ("server_error", "vector_store_timeout", "failed_to_download_image")
)
"""Codes of errors that do not blame the request."""
_REASONS = frozenset(("max_output_tokens", "content_filter", "max_messages"))
_OPAQUE = frozenset(("tool_search_call", "tool_search_output"))
"""Types of items with JSON of the client, where null has a meaning."""
_TEXT_FIELDS = frozenset(
    ("id", "type", "status", "role", "phase", "call_id", "name", "namespace", "encrypted_content")
)
"""Fields of items that are strings. A field with another value is dropped."""
_SUBJECTS = {
    "reasoning": "reasoning_text",
    "reasoning_summary": "reasoning_summary_text",
    "mcp_call": "",
    "mcp_list_tools": "",
}
"""Older spellings, and events that are dropped: an upstream is never given an MCP server."""


class _Delta(msgspec.Struct, gc=False):
    type: str
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    logprobs: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Delta).decode
_PLACE = ("type", "output_index", "item_id", "content_index", "summary_index")
"""What tells the text of a delta from other texts."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""A surrogate in JSON, as an escape or as three bytes."""
_NO_LOGPROBS = (b"[]", b"null")


class ResponsesEventReader:
    """Reads the payloads of one stream in their order."""

    def __init__(self) -> None:
        self._halves = SurrogateHalves()

    def read(self, data: bytes) -> UpstreamEvent:
        """The next payload, as `parse_event` reads it. Half a character at the end of a delta waits
        for the next one. One that stays alone comes with the whole item, as U+FFFD."""
        if b".delta" in data and (self._halves.waiting or _HALF.search(data) is not None):
            data = _with_whole_characters(data, self._halves)
        return parse_event(data)


def _with_whole_characters(data: bytes, halves: SurrogateHalves) -> bytes:
    """A payload whose delta has no half of a character at its end."""
    try:
        event = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return data
    if not isinstance(event, dict) or not isinstance(event.get("delta"), str):
        return data
    place = tuple(str(event.get(name)) for name in _PLACE)
    event["delta"] = clean_text(halves.join_text(event["delta"], place))
    return json.dumps(event).encode()


def parse_event(data: bytes) -> UpstreamEvent:
    """One payload that is no part of a stream, or a whole response that came as a JSON body.

    Raises UpstreamFailed if the payload reports an error, cannot be read, or is no event of the
    Responses API.
    """
    if b".delta" in data and not (b"\\u0000" in data or b"\\ud" in data or b"\\uD" in data):
        try:
            delta_event = _decode(data)
        except ValueError:
            return _upstream_event(_read(data), len(data))
        if (
            delta_event.type.endswith(".delta")
            and delta_event.delta is not None
            and delta_event.logprobs in (None, *_NO_LOGPROBS)
        ):
            part_index = (
                delta_event.summary_index
                if delta_event.content_index is None
                else delta_event.content_index
            )
            subject = delta_event.type.removeprefix("response.").removesuffix(".delta")
            return UpstreamEvent(
                _SUBJECTS.get(subject, subject),
                "delta",
                delta_event.output_index,
                delta_event.item_id or "",
                part_index,
                delta_event.delta,
                size=len(data),
            )
    return _upstream_event(_read(data), len(data))


def _read(data: bytes) -> dict[str, Any]:
    try:
        event = decode_body(data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").encode())
    except InvalidRequest as error:
        raise failure_of_text(data) or UpstreamFailed(
            "The upstream sent an event that is not JSON.", reason="upstream_garbage"
        ) from error
    if not isinstance(event, dict):
        words = failure_of_text(event.encode()) if isinstance(event, str) else failure_in(event)
        raise words or UpstreamFailed(
            "The upstream sent an event that is not a JSON object.", reason="upstream_garbage"
        )
    return event


def _upstream_event(raw: dict[str, Any], size: int) -> UpstreamEvent:
    kind = _text(raw.get("type"))
    if kind in ("error", "response.error") or (not kind and raw.get("error")):
        raise _failure(raw)
    if kind in _START_EVENTS:
        return _response_event(None, _object(raw.get("response")), size)
    if kind in _STATUS_BY_END_EVENT:
        return _response_event(_STATUS_BY_END_EVENT[kind], _object(raw.get("response")), size)
    if not kind:
        return _body(raw, size)
    if ("." not in kind or "://" in kind) and (failure := failure_in(raw)) is not None:
        raise failure  # no event has such a type: it is that of an error
    subject, _, step = kind.removeprefix("response.").rpartition(".")
    full_text = next(
        (
            raw[key]
            for key in ("text", "refusal", "arguments", "input", "code")
            if isinstance(raw.get(key), str)
        ),
        None,
    )
    index = _index(raw.get("content_index"))
    return UpstreamEvent(
        subject=_SUBJECTS.get(subject, subject),
        step=step,
        output_index=_index(raw.get("output_index")),
        item_id=_text(raw.get("item_id")) or _text(_object(raw.get("item")).get("id")),
        part_index=_index(raw.get("summary_index")) if index is None else index,
        delta=_text(raw.get("delta")),
        full_text=full_text,
        name=_text(raw.get("name")),
        logprobs=logprobs_of(raw.get("logprobs")),
        item=_item(raw["item"]) if isinstance(raw.get("item"), dict) else None,
        part=without_nulls(raw["part"])
        if isinstance(_object(raw.get("part")).get("type"), str)
        else None,
        annotation=without_nulls(raw["annotation"])
        if isinstance(raw.get("annotation"), dict)
        else None,
        image=_text(raw.get("partial_image_b64")),
        size=size,
    )


def _body(raw: dict[str, Any], size: int) -> UpstreamEvent:
    """JSON without a type: a whole response although a stream was requested, an error in another
    form, or another API."""
    if raw.get("object") == "response" or isinstance(raw.get("output"), list):
        return _response_event(_text(raw.get("status")) or "completed", raw, size)
    if str(raw.get("object", "")).startswith("chat.completion"):
        message = (
            "The upstream answered in the Chat Completions format: its 'api' should be 'chat'."
        )
        raise UpstreamFailed(message, reason="upstream_wrong_api")
    raise failure_in(raw) or UpstreamFailed(
        "The upstream sent JSON that is no event of the Responses API.", reason="upstream_garbage"
    )


def _response_event(end_status: str | None, response: dict[str, Any], size: int) -> UpstreamEvent:
    """An event with the upstream's Response object. Its items and usage are used only at the end of
    the stream.

    `end_status`: the status that the event's type implies; None while the response runs.
    """
    model = _text(response.get("model")) or None
    service_tier = _text(response.get("service_tier")) or None
    if end_status is None:
        return UpstreamEvent(model=model, service_tier=service_tier, size=size)
    status = _text(response.get("status"))
    terminal = _terminal_state(
        status if status in _STATUS_BY_END_EVENT.values() else end_status, response
    )
    return UpstreamEvent(
        terminal=msgspec.structs.replace(terminal, extra_fields=unknown_response_fields(response)),
        usage=_usage(response.get("usage")),
        model=model,
        service_tier=service_tier,
        size=size,
    )


def _usage(raw: Any) -> TokenCounts | None:
    counts = read_counts(raw)
    return counts and replace(counts, others=unknown_counts(raw))


def _terminal_state(status: str, response: dict[str, Any]) -> TerminalState:
    items = response.get("output")
    output = (
        [_item(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    )
    match status:
        case "completed":
            return TerminalState("completed", output)
        case "incomplete":
            reason = _text(_object(response.get("incomplete_details")).get("reason"))
            if reason not in _REASONS and finish_reason(reason) == "content_filter":
                reason = "content_filter"
            return TerminalState(
                "incomplete", output, reason if reason in _REASONS else "max_output_tokens"
            )
        case "failed":
            return TerminalState("failed", output, failure=_failure(response.get("error") or {}))
        case "cancelled":
            return TerminalState(
                "failed",
                output,
                failure=UpstreamFailed(
                    "The upstream cancelled its response.",
                    reason="upstream_cancelled",
                    is_interruption=True,
                ),
            )
        case _:
            message = "The upstream answered with a response that has not ended."
            return TerminalState(
                "failed", output, failure=UpstreamFailed(message, reason="upstream_garbage")
            )


def _failure(error: Any) -> UpstreamFailed:
    """The failure for an error object. Its `code` is one of the API's own and says whether the
    request or the server is to blame.

    So it decides whether another upstream is tried.
    """
    failure = failure_of_error(error)
    if failure.reason == "upstream_error" and failure.code not in _SERVER_ERROR_CODES:
        failure.reason = f"upstream_{failure.status}"
    return failure


def _item(raw: dict[str, Any]) -> Item:
    """An item without nulls, and with strings where the code behind this point expects them."""
    fields = {
        name: value
        for name, value in raw.items()
        if name not in _TEXT_FIELDS or isinstance(value, str)
    }
    if fields.get("type") in _OPAQUE:
        return {name: value for name, value in fields.items() if value is not None}
    item: Item = without_nulls(fields)
    if "type" not in item and "role" in item:
        item["type"] = "message"
    return item


def _object(raw: Any) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _text(raw: Any) -> str:
    return raw if isinstance(raw, str) else ""


def _index(raw: Any) -> int | None:
    return raw if type(raw) is int else None
