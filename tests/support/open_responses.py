"""What the Open Responses suite demands of every Response and event, as JSON Schema (contract §3, §4.4, §8).

Written after the specification's TypeSpec (openresponses/openresponses, `schema/*.tsp`). Keys beyond these are fine. Where its copies
disagree (the names of raw reasoning events), the one that its validator uses counts.
"""

from typing import Any

import jsonschema_rs

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_TRUTH: Schema = {"type": "boolean"}
_STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
_EFFORT: Schema = {"enum": ["none", "low", "medium", "high", "xhigh", None]}
_SUMMARY: Schema = {"enum": ["concise", "detailed", "auto", None]}


def _thing(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _typed(name: str, required: Schema, optional: Schema | None = None) -> Schema:
    return _thing({"type": {"const": name}, **required}, optional)


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TOP_LOGPROB = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(_WHOLE)}
_LOGPROB = _thing({**_TOP_LOGPROB, "top_logprobs": _list(_thing(_TOP_LOGPROB))})
_ANNOTATION = _typed(
    "url_citation", {"url": _TEXT, "start_index": _WHOLE, "end_index": _WHOLE, "title": _TEXT}
)
_PART = {
    "oneOf": [
        _typed(
            "output_text",
            {"text": _TEXT, "annotations": _list(_ANNOTATION), "logprobs": _list(_LOGPROB)},
        ),
        *(
            _typed(name, {"text": _TEXT})
            for name in ("input_text", "text", "summary_text", "reasoning_text")
        ),
        _typed("refusal", {"refusal": _TEXT}),
        _typed(
            "input_image",
            {"image_url": _or_null(_TEXT), "detail": {"enum": ["low", "high", "auto"]}},
        ),
        _typed("input_file", {}, {"filename": _TEXT, "file_url": _TEXT}),
    ]
}
_FOUND = _typed("url", {"url": _TEXT})
_ITEM = {
    "oneOf": [
        _typed(
            "message",
            {
                "id": _TEXT,
                "status": _STATUS,
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": _list(_PART),
            },
            {"phase": {"enum": ["commentary", "final_answer"]}},
        ),
        _typed(
            "function_call",
            {"id": _TEXT, "call_id": _TEXT, "name": _TEXT, "arguments": _TEXT, "status": _STATUS},
        ),
        _typed(
            "function_call_output",
            {
                "id": _TEXT,
                "call_id": _TEXT,
                "output": {"type": ["string", "array"]},
                "status": _STATUS,
            },
        ),
        _typed(
            "reasoning",
            {"id": _TEXT, "summary": _list(_PART)},
            {"content": _list(_PART), "encrypted_content": _TEXT},
        ),
        _typed("compaction", {"id": _TEXT, "encrypted_content": _TEXT}),
        _typed(
            "web_search_call",
            {"id": _TEXT, "status": {"enum": ["in_progress", "searching", "completed", "failed"]}},
            {
                "action": _typed(
                    "search",
                    {},
                    {"query": _TEXT, "queries": _list(_TEXT), "sources": _list(_FOUND)},
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
                "name": _TEXT,
                "description": _or_null(_TEXT),
                "parameters": _or_null({"type": "object"}),
                "strict": _or_null(_TRUTH),
            },
        ),
        _typed(
            "web_search",
            {},
            {
                "external_web_access": _TRUTH,
                "search_context_size": {"enum": ["low", "medium", "high"]},
            },
        ),
    ]
}
_FUNCTION_CHOICE = _typed("function", {}, {"name": _TEXT})
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
            {"name": _TEXT, "schema": {"type": "object"}},
            {"description": _or_null(_TEXT), "strict": _TRUTH},
        ),
    ]
}
_USAGE = _thing(
    {
        "input_tokens": _WHOLE,
        "output_tokens": _WHOLE,
        "total_tokens": _WHOLE,
        "input_tokens_details": _thing({"cached_tokens": _WHOLE}),
        "output_tokens_details": _thing({"reasoning_tokens": _WHOLE}),
    }
)
RESPONSE = _thing(
    {
        "id": _TEXT,
        "object": {"const": "response"},
        "created_at": _WHOLE,
        "completed_at": _or_null(_WHOLE),
        "status": _TEXT,
        "incomplete_details": _or_null(_thing({"reason": _TEXT})),
        "model": _TEXT,
        "previous_response_id": _or_null(_TEXT),
        "instructions": _or_null(_TEXT),
        "output": _list(_ITEM),
        "error": _or_null(_thing({"code": _TEXT, "message": _TEXT})),
        "tools": _list(_TOOL),
        "tool_choice": _CHOICE,
        "truncation": {"enum": ["auto", "disabled"]},
        "parallel_tool_calls": _TRUTH,
        "text": _thing({"format": _FORMAT}, {"verbosity": {"enum": ["low", "medium", "high"]}}),
        "reasoning": _or_null(_thing({"effort": _EFFORT, "summary": _SUMMARY})),
        "usage": _or_null(_USAGE),
        **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), _NUMBER),
        **dict.fromkeys(("max_output_tokens", "max_tool_calls"), _or_null(_WHOLE)),
        **dict.fromkeys(("safety_identifier", "prompt_cache_key"), _or_null(_TEXT)),
        **dict.fromkeys(("store", "background"), _TRUTH),
        "top_logprobs": _WHOLE,
        "service_tier": _TEXT,
        "metadata": {"type": "object"},
    }
)

_PLACE = {"item_id": _TEXT, "output_index": _WHOLE}
_IN_CONTENT = {**_PLACE, "content_index": _WHOLE}
_IN_SUMMARY = {**_PLACE, "summary_index": _WHOLE}
_SNAPSHOTS = ("created", "queued", "in_progress", "completed", "failed", "incomplete")
_EVENTS: Schema = {
    **{f"response.{name}": {"response": RESPONSE} for name in _SNAPSHOTS},
    **{
        f"response.output_item.{name}": {"output_index": _WHOLE, "item": _ITEM}
        for name in ("added", "done")
    },
    **{
        f"response.content_part.{name}": {**_IN_CONTENT, "part": _PART}
        for name in ("added", "done")
    },
    "response.output_text.delta": {**_IN_CONTENT, "delta": _TEXT, "logprobs": _list(_LOGPROB)},
    "response.output_text.done": {**_IN_CONTENT, "text": _TEXT, "logprobs": _list(_LOGPROB)},
    "response.output_text.annotation.added": {
        **_IN_CONTENT,
        "annotation_index": _WHOLE,
        "annotation": _ANNOTATION,
    },
    "response.refusal.delta": {**_IN_CONTENT, "delta": _TEXT},
    "response.refusal.done": {**_IN_CONTENT, "refusal": _TEXT},
    "response.reasoning_text.delta": {**_IN_CONTENT, "delta": _TEXT},
    "response.reasoning_text.done": {**_IN_CONTENT, "text": _TEXT},
    **{
        f"response.reasoning_summary_part.{name}": {**_IN_SUMMARY, "part": _PART}
        for name in ("added", "done")
    },
    "response.reasoning_summary_text.delta": {**_IN_SUMMARY, "delta": _TEXT},
    "response.reasoning_summary_text.done": {**_IN_SUMMARY, "text": _TEXT},
    "response.function_call_arguments.delta": {**_PLACE, "delta": _TEXT},
    "response.function_call_arguments.done": {**_PLACE, "arguments": _TEXT},
}

_response = jsonschema_rs.validator_for(RESPONSE)
_events = {
    name: jsonschema_rs.validator_for(
        _typed(name, {**fields, "sequence_number": _WHOLE}, {"obfuscation": _TEXT})
    )
    for name, fields in _EVENTS.items()
}


def require_response(response: Any) -> None:
    """Fails with what the suite's schema of a Response would not take."""
    _require(_response, response)


def require_event(event: Any) -> None:
    """As above, for an event of a stream; the suite knows no others."""
    assert event["type"] in _events, f"Open Responses knows no event {event['type']}"
    _require(_events[event["type"]], event)


def _require(validator: Any, value: Any) -> None:
    faults = [
        f"{'.'.join(map(str, fault.instance_path))}: {fault.message}"
        for fault in validator.iter_errors(value)
    ]
    assert not faults, "\n".join(faults)
