"""Strict checks of JSON against the official SDK's types, and our additions (docs/wire.md).

The SDK itself builds its models without validation; here they validate: required fields must be
present, no value is coerced, keys it does not know are allowed. Unions go by `type`, so that a
fault is told about the one member that was meant.
"""

from functools import cache
from typing import Any, Literal, get_args, get_origin

import openai.types.responses as sdk
from openai import BaseModel

from tests.support.api import JSON
from tests.support.contract_rules import SERVER_TOOL_EVENTS

_NEVER_NULL = {
    *(
        "id",
        "object",
        "created_at",
        "status",
        "model",
        "output",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
    ),
    *(
        "top_p",
        "temperature",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "store",
        "background",
        "service_tier",
        "metadata",
    ),
}
_NULLABLE = {
    *(
        "completed_at",
        "incomplete_details",
        "previous_response_id",
        "instructions",
        "error",
        "reasoning",
        "usage",
    ),
    *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
}
_ERROR_CODES = frozenset(get_args(sdk.ResponseError.model_fields["code"].annotation))
_UNLISTED_ERROR_CODES = frozenset({"context_length_exceeded", "insufficient_quota"})
"""Codes that OpenAI sends, and Codex knows, although the SDK does not list them."""
_ENDINGS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


@cache
def _members(union: Any) -> dict[str, type[BaseModel]]:
    """The members of one of the SDK's unions by the value of their `type`."""
    members: dict[str, type[BaseModel]] = {}
    for member in get_args(
        get_args(union)[0]
        if get_origin(union) is not None and hasattr(union, "__metadata__")
        else union
    ):
        annotation = member.model_fields["type"].annotation
        assert get_origin(annotation) is Literal, member
        members |= dict.fromkeys(get_args(annotation), member)
    return members


def _check(union: Any, value: JSON) -> None:
    kind = value.get("type")
    members = _members(union)
    assert kind in members, f"the SDK knows no {kind!r} here: {value}"
    members[kind].model_validate(value, strict=True)


def check_item(item: JSON) -> None:
    """An item of an `output`."""
    # the SDK's types have no word for a patch that broke off with its response (docs/tools.md)
    broken_off = item["type"] == "apply_patch_call" and item["status"] == "incomplete"
    _check(sdk.ResponseOutputItem, {**item, "status": "in_progress"} if broken_off else item)
    # every item has an id, a type and a status, and no optional field is null (docs/wire.md)
    assert item["id"], item
    assert item["status"] in (
        "in_progress",
        "completed",
        "incomplete",
        "failed",
        "searching",
        "calling",
    ), item
    assert None not in item.values(), f"a null where the field could be absent: {item}"
    if item["type"] == "message":
        assert item["role"] == "assistant", item
        for part in item["content"]:
            assert set(part) >= (
                {"text", "annotations", "logprobs"}
                if part["type"] == "output_text"
                else {"refusal"}
            ), part
    if item["type"] == "function_call":
        assert item["call_id"] != item["id"], item
        assert 0 < len(item["call_id"]) <= 64, item


def _allowed_in_completed(item: JSON) -> bool:
    """Allows the error of a failed tool, which the model received before its answer; no other
    error.
    """
    return item["status"] == "completed" or (
        item["status"] == "failed" and item["type"] in SERVER_TOOL_EVENTS
    )


def _with_known_values(response: JSON) -> JSON:
    """Replaces tool choices and error codes that the SDK does not list; it does not check them
    itself."""
    choice, error = response["tool_choice"], response["error"]
    known = dict(response)
    if isinstance(choice, dict) and choice["type"] in ("tool_search", "local_shell"):
        known["tool_choice"] = "auto"
    if error is not None and error["code"] in _UNLISTED_ERROR_CODES:
        known["error"] = error | {"code": "invalid_prompt"}
    return known


def check_response(response: JSON) -> None:
    """A Response object: the SDK's types, its keys, and what its status implies."""
    for item in response["output"]:
        check_item(item)
    sdk.Response.model_validate(_with_known_values(response), strict=True)
    assert not (missing := (_NEVER_NULL | _NULLABLE) - set(response)), f"missing: {missing}"
    assert not (null := {key for key in _NEVER_NULL if response[key] is None}), f"null: {null}"
    assert type(response["created_at"]) is int
    assert response["text"]["format"]["type"], response["text"]
    assert set(response["reasoning"]) >= {"effort", "summary"}
    status = response["status"]
    assert (type(response["completed_at"]) is int) == (status == "completed"), response[
        "completed_at"
    ]
    assert (response["error"] is not None) == (status == "failed"), response["error"]
    assert (response["incomplete_details"] is not None) == (status == "incomplete"), response[
        "incomplete_details"
    ]
    if response["error"] is not None:
        assert response["error"]["code"] in _ERROR_CODES | _UNLISTED_ERROR_CODES
        assert response["error"]["message"]
    if response["usage"] is not None:
        check_usage(response["usage"])
    if status == "queued":
        assert response["output"] == []
        assert response["usage"] is None
    if status == "completed":
        assert all(_allowed_in_completed(item) for item in response["output"]), response["output"]


def check_usage(usage: JSON) -> None:
    """Usage with both details, whole numbers throughout."""
    numbers = [
        usage["input_tokens"],
        usage["output_tokens"],
        usage["total_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["input_tokens_details"]["cache_write_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    ]
    assert all(type(number) is int and number >= 0 for number in numbers), usage


def check_event(event: JSON) -> None:
    """An event of a stream."""
    if event["type"] in ("response.output_item.added", "response.output_item.done"):
        check_item(event["item"])
    elif "response" in event:
        check_response(event["response"])
        expected = _ENDINGS.get(event["response"]["status"])
        assert expected in (None, event["type"]), (
            f"{event['type']} carries status {event['response']['status']}"
        )
    if event.get("item", {}).get("type") != "apply_patch_call":  # whose item was looked at above
        known = {"response": _with_known_values(event["response"])} if "response" in event else {}
        _check(sdk.ResponseStreamEvent, event | known)
    if event["type"] == "response.function_call_arguments.done":
        assert event["name"], "OpenAI's schema requires the name, SDK 3.52 does not know it"
