"""The Open Responses suite's demands on every Response and event, as JSON Schema (docs/wire.md).

Written after the specification's TypeSpec (openresponses/openresponses, `schema/*.tsp`). Keys
beyond these are fine. Where its copies disagree (the names of raw reasoning events), the one that
its validator uses counts.
"""

from typing import Any

import jsonschema_rs

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
_EFFORT: Schema = {"enum": ["none", "low", "medium", "high", "xhigh", None]}
_SUMMARY: Schema = {"enum": ["concise", "detailed", "auto", None]}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _typed(name: str, required: Schema, optional: Schema | None = None) -> Schema:
    return _object({"type": {"const": name}, **required}, optional)


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TOP_LOGPROB = {"token": _STRING, "logprob": _NUMBER, "bytes": _list(_INTEGER)}
_LOGPROB = _object({**_TOP_LOGPROB, "top_logprobs": _list(_object(_TOP_LOGPROB))})
_ANNOTATION = _typed(
    "url_citation",
    {"url": _STRING, "start_index": _INTEGER, "end_index": _INTEGER, "title": _STRING},
)
_PART = {
    "oneOf": [
        _typed(
            "output_text",
            {"text": _STRING, "annotations": _list(_ANNOTATION), "logprobs": _list(_LOGPROB)},
        ),
        *(
            _typed(name, {"text": _STRING})
            for name in ("input_text", "text", "summary_text", "reasoning_text")
        ),
        _typed("refusal", {"refusal": _STRING}),
        _typed(
            "input_image",
            {"image_url": _or_null(_STRING), "detail": {"enum": ["low", "high", "auto"]}},
        ),
        _typed("input_file", {}, {"filename": _STRING, "file_url": _STRING}),
    ]
}
_SOURCE = _typed("url", {"url": _STRING})
_ITEM = {
    "oneOf": [
        _typed(
            "message",
            {
                "id": _STRING,
                "status": _STATUS,
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": _list(_PART),
            },
            {"phase": {"enum": ["commentary", "final_answer"]}},
        ),
        _typed(
            "function_call",
            {
                "id": _STRING,
                "call_id": _STRING,
                "name": _STRING,
                "arguments": _STRING,
                "status": _STATUS,
            },
        ),
        _typed(
            "function_call_output",
            {
                "id": _STRING,
                "call_id": _STRING,
                "output": {"type": ["string", "array"]},
                "status": _STATUS,
            },
        ),
        _typed(
            "reasoning",
            {"id": _STRING, "summary": _list(_PART)},
            {"content": _list(_PART), "encrypted_content": _STRING},
        ),
        _typed("compaction", {"id": _STRING, "encrypted_content": _STRING}),
        _typed(
            "web_search_call",
            {
                "id": _STRING,
                "status": {"enum": ["in_progress", "searching", "completed", "failed"]},
            },
            {
                "action": _typed(
                    "search",
                    {},
                    {"query": _STRING, "queries": _list(_STRING), "sources": _list(_SOURCE)},
                )
            },
        ),
    ]
}
_TOOL = {
    "oneOf": [
        _typed(
            "function",
            {
                "name": _STRING,
                "description": _or_null(_STRING),
                "parameters": _or_null({"type": "object"}),
                "strict": _or_null(_BOOLEAN),
            },
        ),
        _typed(
            "web_search",
            {},
            {
                "external_web_access": _BOOLEAN,
                "search_context_size": {"enum": ["low", "medium", "high"]},
            },
        ),
    ]
}
_FUNCTION_CHOICE = _typed("function", {}, {"name": _STRING})
_CHOICE_WORD: Schema = {"enum": ["none", "auto", "required"]}
_CHOICE = {
    "anyOf": [
        _CHOICE_WORD,
        _FUNCTION_CHOICE,
        _typed("web_search", {}),
        _typed("allowed_tools", {"tools": _list(_FUNCTION_CHOICE), "mode": _CHOICE_WORD}),
    ]
}
_FORMAT = {
    "oneOf": [
        _typed("text", {}),
        _typed("json_object", {}),
        # its `schema` is null there, which is no sense: what the client sent is echoed
        _typed(
            "json_schema",
            {"name": _STRING, "schema": {"type": "object"}},
            {"description": _or_null(_STRING), "strict": _BOOLEAN},
        ),
    ]
}
_USAGE = _object(
    {
        "input_tokens": _INTEGER,
        "output_tokens": _INTEGER,
        "total_tokens": _INTEGER,
        "input_tokens_details": _object({"cached_tokens": _INTEGER}),
        "output_tokens_details": _object({"reasoning_tokens": _INTEGER}),
    }
)
RESPONSE = _object(
    {
        "id": _STRING,
        "object": {"const": "response"},
        "created_at": _INTEGER,
        "completed_at": _or_null(_INTEGER),
        "status": _STRING,
        "incomplete_details": _or_null(_object({"reason": _STRING})),
        "model": _STRING,
        "previous_response_id": _or_null(_STRING),
        "instructions": _or_null(_STRING),
        "output": _list(_ITEM),
        "error": _or_null(_object({"code": _STRING, "message": _STRING})),
        "tools": _list(_TOOL),
        "tool_choice": _CHOICE,
        "truncation": {"enum": ["auto", "disabled"]},
        "parallel_tool_calls": _BOOLEAN,
        "text": _object({"format": _FORMAT}, {"verbosity": {"enum": ["low", "medium", "high"]}}),
        "reasoning": _or_null(_object({"effort": _EFFORT, "summary": _SUMMARY})),
        "usage": _or_null(_USAGE),
        **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), _NUMBER),
        **dict.fromkeys(("max_output_tokens", "max_tool_calls"), _or_null(_INTEGER)),
        **dict.fromkeys(("safety_identifier", "prompt_cache_key"), _or_null(_STRING)),
        **dict.fromkeys(("store", "background"), _BOOLEAN),
        "top_logprobs": _INTEGER,
        "service_tier": _STRING,
        "metadata": {"type": "object"},
    }
)

_ITEM_PLACE = {"item_id": _STRING, "output_index": _INTEGER}
_IN_CONTENT = {**_ITEM_PLACE, "content_index": _INTEGER}
_IN_SUMMARY = {**_ITEM_PLACE, "summary_index": _INTEGER}
_SNAPSHOTS = ("created", "queued", "in_progress", "completed", "failed", "incomplete")
_EVENTS: Schema = {
    **{f"response.{name}": {"response": RESPONSE} for name in _SNAPSHOTS},
    **{
        f"response.output_item.{name}": {"output_index": _INTEGER, "item": _ITEM}
        for name in ("added", "done")
    },
    **{
        f"response.content_part.{name}": {**_IN_CONTENT, "part": _PART}
        for name in ("added", "done")
    },
    "response.output_text.delta": {**_IN_CONTENT, "delta": _STRING, "logprobs": _list(_LOGPROB)},
    "response.output_text.done": {**_IN_CONTENT, "text": _STRING, "logprobs": _list(_LOGPROB)},
    "response.output_text.annotation.added": {
        **_IN_CONTENT,
        "annotation_index": _INTEGER,
        "annotation": _ANNOTATION,
    },
    "response.refusal.delta": {**_IN_CONTENT, "delta": _STRING},
    "response.refusal.done": {**_IN_CONTENT, "refusal": _STRING},
    "response.reasoning_text.delta": {**_IN_CONTENT, "delta": _STRING},
    "response.reasoning_text.done": {**_IN_CONTENT, "text": _STRING},
    **{
        f"response.reasoning_summary_part.{name}": {**_IN_SUMMARY, "part": _PART}
        for name in ("added", "done")
    },
    "response.reasoning_summary_text.delta": {**_IN_SUMMARY, "delta": _STRING},
    "response.reasoning_summary_text.done": {**_IN_SUMMARY, "text": _STRING},
    "response.function_call_arguments.delta": {**_ITEM_PLACE, "delta": _STRING},
    "response.function_call_arguments.done": {**_ITEM_PLACE, "arguments": _STRING},
}

_response = jsonschema_rs.validator_for(RESPONSE)
_events = {
    name: jsonschema_rs.validator_for(
        _typed(name, {**fields, "sequence_number": _INTEGER}, {"obfuscation": _STRING})
    )
    for name, fields in _EVENTS.items()
}


def require_response(response: Any) -> None:
    """Fails with the places at which the suite's schema of a Response refuses the value."""
    _require(_response, response)


def require_event(event: Any) -> None:
    """The same for an event of a stream. The suite knows no other events."""
    assert event["type"] in _events, f"Open Responses knows no event {event['type']}"
    _require(_events[event["type"]], event)


def _require(validator: Any, value: Any) -> None:
    faults = [
        f"{'.'.join(map(str, fault.instance_path))}: {fault.message}"
        for fault in validator.iter_errors(value)
    ]
    assert not faults, "\n".join(faults)
