"""A native upstream's event in, what it tells out. The only place that knows their oddities (contract §4.4, §4.5).

Deltas, nearly all there is, take msgspec's typed decoder; everything else is read as a client's body is, because it is stored and shown as
the upstream has it: what cannot be encoded again, or is nested without end, is garbage.
"""

from typing import Any

import msgspec

from models.errors import InvalidRequest, UpstreamFailed
from models.wire.checks import anything
from models.wire.events import Item
from models.wire.json_input import decode_body
from worker.translation.turn import TIERS
from worker.translation.upstream_events import Ended, Told
from worker.translation.usage import Usage
from worker.upstream.chat_chunks import failure_of, logprobs_of

_MOST_TOKENS = 2**53
"""The largest count every JSON reader holds exactly."""

_OPENINGS = frozenset(("response.created", "response.queued", "response.in_progress"))
_ENDINGS = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.canceled": "cancelled",
}
_SERVERS_OWN = frozenset(("server_error", "vector_store_timeout", "failed_to_download_image"))
"""Codes of errors that are not the request's fault."""
_UNCLEAR, _TOO_MANY = 502, 429
_REASONS = frozenset(("max_output_tokens", "content_filter", "max_messages"))
_FILTERED = frozenset(("safety", "content_filtered", "recitation"))
_OPAQUE = frozenset(("tool_search_call", "tool_search_output"))
"""Items that hold JSON of others, where null means something."""
_WORDS = frozenset(
    ("id", "type", "status", "role", "phase", "call_id", "name", "namespace", "encrypted_content")
)
"""Fields of items that are text, or are as if they were not there."""
_SUBJECTS = {
    "reasoning": "reasoning_text",
    "reasoning_summary": "reasoning_summary_text",
    "mcp_call": "",
    "mcp_list_tools": "",
}
"""Older spellings, and what is not ours to tell: no MCP server is ever named to an upstream."""


class _Delta(msgspec.Struct, gc=False):
    type: str
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    logprobs: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Delta).decode
_NO_LOGPROBS = (b"[]", b"null")


def parse_event(data: bytes) -> Told:
    """What one payload of the stream tells, or a whole response that came as a JSON body.

    Raises UpstreamFailed when the payload reports an error, cannot be read, or is no event of the Responses API.
    """
    if b".delta" in data and not (b"\\u0000" in data or b"\\ud" in data or b"\\uD" in data):
        try:
            found = _decode(data)
        except ValueError:
            return _told(_read(data), len(data))
        if (
            found.type.endswith(".delta")
            and found.delta is not None
            and found.logprobs in (None, *_NO_LOGPROBS)
        ):
            place = found.summary_index if found.content_index is None else found.content_index
            subject = found.type.removeprefix("response.").removesuffix(".delta")
            return Told(
                _SUBJECTS.get(subject, subject),
                "delta",
                found.output_index,
                found.item_id or "",
                place,
                found.delta,
                size=len(data),
            )
    return _told(_read(data), len(data))


def _read(data: bytes) -> dict[str, Any]:
    try:
        found = decode_body(data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").encode())
    except InvalidRequest as error:
        raise UpstreamFailed(
            "The upstream sent an event that is not JSON.", reason="upstream_garbage"
        ) from error
    if not isinstance(found, dict):
        raise UpstreamFailed(
            "The upstream sent an event that is not a JSON object.", reason="upstream_garbage"
        )
    return found


def _told(found: dict[str, Any], size: int) -> Told:
    kind = _text(found.get("type"))
    if kind in ("error", "response.error") or (not kind and found.get("error")):
        raise _failure(found.get("error") or found)
    if kind in _OPENINGS or kind in _ENDINGS:
        return _snapshot(_ENDINGS.get(kind, ""), _object(found.get("response")), size)
    if not kind:
        return _body(found, size)
    subject, _, step = kind.removeprefix("response.").rpartition(".")
    whole = next(
        (
            found[key]
            for key in ("text", "refusal", "arguments", "input", "code")
            if isinstance(found.get(key), str)
        ),
        None,
    )
    index = _index(found.get("content_index"))
    return Told(
        subject=_SUBJECTS.get(subject, subject),
        step=step,
        output_index=_index(found.get("output_index")),
        item_id=_text(found.get("item_id")) or _text(_object(found.get("item")).get("id")),
        place=_index(found.get("summary_index")) if index is None else index,
        delta=_text(found.get("delta")),
        whole=whole,
        name=_text(found.get("name")),
        logprobs=logprobs_of(found.get("logprobs")),
        item=_item(found["item"]) if isinstance(found.get("item"), dict) else None,
        part=anything(found["part"])
        if isinstance(_object(found.get("part")).get("type"), str)
        else None,
        annotation=anything(found["annotation"])
        if isinstance(found.get("annotation"), dict)
        else None,
        image=_text(found.get("partial_image_b64")),
        size=size,
    )


def _body(found: dict[str, Any], size: int) -> Told:
    """JSON without a type: a whole response although a stream was asked for, an error in other words, or another API."""
    if found.get("object") == "response" or isinstance(found.get("output"), list):
        return _snapshot(_text(found.get("status")) or "completed", found, size)
    if str(found.get("object", "")).startswith("chat.completion"):
        message = (
            "The upstream answered in the words of Chat Completions: its 'api' should be 'chat'."
        )
        raise UpstreamFailed(message, reason="upstream_wrong_api")
    if isinstance(found.get("message") or found.get("detail"), str):
        raise failure_of(found)
    raise UpstreamFailed(
        "The upstream sent JSON that is no event of the Responses API.", reason="upstream_garbage"
    )


def _snapshot(says: str, response: dict[str, Any], size: int) -> Told:
    """The upstream's own Response object: of it only the last one's items, and what it says of the turn as a whole, matter. `says`: how
    it ends according to its event, empty while it goes on."""
    status, tier = _text(response.get("status")), response.get("service_tier")
    return Told(
        ended=_ended(status if status in _ENDINGS.values() else says, response) if says else None,
        usage=_usage(response.get("usage")) if says else None,
        model=_text(response.get("model")) or None,
        service_tier=tier if tier in TIERS else None,
        size=size,
    )


def _ended(status: str, response: dict[str, Any]) -> Ended:
    output = (
        [_item(item) for item in response.get("output") or () if isinstance(item, dict)]
        if isinstance(response.get("output"), list)
        else []
    )
    match status:
        case "completed":
            return Ended("completed", output)
        case "incomplete":
            reason = _text(_object(response.get("incomplete_details")).get("reason"))
            known = (
                reason
                if reason in _REASONS
                else "content_filter"
                if reason in _FILTERED
                else "max_output_tokens"
            )
            return Ended("incomplete", output, known)
        case "failed":
            return Ended("failed", output, failure=_failure(response.get("error") or {}))
        case "cancelled":
            return Ended(
                "failed",
                output,
                failure=UpstreamFailed(
                    "The upstream cancelled its response.", reason="upstream_cancelled"
                ),
            )
        case _:
            message = "The upstream answered with a response that has not ended."
            return Ended(
                "failed", output, failure=UpstreamFailed(message, reason="upstream_garbage")
            )


def _failure(error: Any) -> UpstreamFailed:
    """What an error object becomes. Its `code` is one of the API's own, which say whose fault it was: other upstreams, and the clients
    that are told of it, need to know."""
    failure = failure_of(error)
    if failure.status == _UNCLEAR and failure.code not in _SERVERS_OWN:
        failure.status = _TOO_MANY if failure.code == "rate_limit_exceeded" else 400
        failure.reason = f"upstream_{failure.status}"
    return failure


def _item(found: dict[str, Any]) -> Item:
    """An item without nulls (design §11), and with text where everything behind this edge expects it."""
    fits = {
        name: value for name, value in found.items() if name not in _WORDS or isinstance(value, str)
    }
    if fits.get("type") in _OPAQUE:
        return {name: value for name, value in fits.items() if value is not None}
    kept: Item = anything(fits)
    if "type" not in kept and "role" in kept:
        kept["type"] = "message"
    return kept


def _usage(found: Any) -> Usage | None:
    """An object without a single count says nothing."""
    told = _object(found)
    counts = [_count(told.get(name)) for name in ("input_tokens", "output_tokens", "total_tokens")]
    if counts == [None, None, None]:
        return None
    heard, said = (
        _object(told.get("input_tokens_details")),
        _object(told.get("output_tokens_details")),
    )
    total = counts[2] or (counts[0] or 0) + (counts[1] or 0)
    return Usage(
        input_tokens=counts[0] or 0,
        output_tokens=counts[1] or 0,
        total_tokens=total,
        cached_tokens=_count(heard.get("cached_tokens")) or 0,
        cache_write_tokens=_count(heard.get("cache_write_tokens")) or 0,
        reasoning_tokens=_count(said.get("reasoning_tokens")) or 0,
    )


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def _index(found: Any) -> int | None:
    return found if type(found) is int else None


def _count(found: Any) -> int | None:
    return min(max(int(found), 0), _MOST_TOKENS) if type(found) in (int, float) else None
