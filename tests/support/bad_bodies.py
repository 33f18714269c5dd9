"""Requests that are wrong in one place each, and the error that names it (docs/wire.md).

`CASES` of tests/unit/wire/test_request_errors.py cover the message of each check. This table covers
the rest: every field with every JSON type it does not take, the edges of every range, and names and
values that the API does not have.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.api import JSON


@dataclass(frozen=True, slots=True)
class BadBody:
    """One wrong body. `body` is added to a valid model and a valid input, and may replace them."""

    name: str
    body: JSON
    param: str | None
    code: str | None
    message: str


VALUES: dict[str, Any] = {
    "an integer": 7,
    "a decimal": 1.5,
    "a boolean": True,
    "a string": "x",
    "an array": [],
    "an object": {},
}
"""The name of a JSON type in errors -> a value of the type."""

ACCEPTED_TYPES = {
    "a number": {"an integer", "a decimal"},
    "a string or an object": {"a string", "an object"},
    "a string or an array of input items": {"a string", "an array"},
    "a string or an array of content parts": {"a string", "an array"},
    "an input item": {"an object"},
    "an image URL": {"a string"},
}
"""What errors name as expected, where it is not the name of one type -> the types accepted."""

USER: JSON = {"role": "user", "content": "Hi."}
FUNCTION: JSON = {"type": "function", "name": "look"}


def message_of(*parts: JSON, role: str = "user") -> JSON:
    """A body whose only item is a message of these parts."""
    return {"input": [{"role": role, "content": list(parts)}]}


_TOOL = {"tools": [{**FUNCTION, "description": "d", "parameters": {}, "strict": True}]}
_CUSTOM = {
    "tools": [
        {
            "type": "custom",
            "name": "run",
            "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
        }
    ]
}
_FUNCTION_CHOICE = {"tool_choice": {"type": "function", "name": "look"}}
_ALLOWED = {
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "look"}],
    }
}
_SCHEMA = {
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"}
}
_CALL = {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}
_CALL_OUTPUT = {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}
_CALL_OUTPUT_PART = {
    "input": [
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "x"}],
        }
    ]
}
_TYPED = {
    "input": [
        {"type": "message", "id": "msg_1", "status": "completed", "role": "user", "content": "Hi."}
    ]
}
_TEXT = message_of({"type": "input_text", "text": "x"})
_IMAGE = message_of({"type": "input_image", "image_url": "data:,", "detail": "low"})
_FILE = message_of({"type": "input_file", "filename": "f", "file_data": "data:,"})
_AUDIO = message_of({"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}})
_OUTPUT_TEXT = message_of(
    {"type": "output_text", "text": "x", "annotations": [{}], "logprobs": [{}]}, role="assistant"
)
_REASONING = {
    "input": [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "x"}],
            "content": [{"type": "reasoning_text", "text": "x"}],
        }
    ]
}
_NAMESPACE_TOOL = {
    "tools": [
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "f"}],
        }
    ]
}
_SEARCH_TOOL = {
    "tools": [{"type": "tool_search", "execution": "client", "description": "d", "parameters": {}}]
}
_WEB = {
    "tools": [
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["a"]},
            "user_location": {"type": "approximate", "country": "DE"},
        }
    ]
}
_SHELL = {"tools": [{"type": "shell", "environment": {"type": "local", "skills": [{}]}}]}
_SHELL_CALL = {"input": [{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}]}
_SHELL_RESULT = {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
_SHELL_CALL_OUTPUT = {
    "input": [{"type": "shell_call_output", "call_id": "c", "output": [_SHELL_RESULT]}]
}
_LOCAL_SHELL_CALL = {
    "input": [
        {
            "type": "local_shell_call",
            "call_id": "c",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        }
    ]
}
_PATCH = {
    "input": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "update_file", "path": "a", "diff": "b"},
        }
    ]
}
_PATCH_OUTPUT = {
    "input": [
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": ""}
    ]
}
_TOOL_SEARCH_OUTPUT = {
    "input": [
        {
            "type": "tool_search_output",
            "call_id": "c",
            "execution": "client",
            "tools": [{"type": "function", "name": "f"}],
        }
    ]
}
_ADDITIONAL_TOOLS = {"input": [{"type": "additional_tools", "role": "developer", "tools": []}]}
_SCREENSHOT = {
    "input": [
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "data:,"},
        }
    ]
}

FIELDS: list[tuple[JSON, str, str]] = [
    *(
        ({}, name, "a string")
        for name in ("model", "instructions", "previous_response_id", "user", "safety_identifier")
    ),
    *(({}, name, "a string") for name in ("prompt_cache_key", "truncation", "service_tier")),
    *(({}, name, "a boolean") for name in ("background", "store", "stream", "parallel_tool_calls")),
    *(({}, name, "an integer") for name in ("max_output_tokens", "max_tool_calls", "top_logprobs")),
    *(
        ({}, name, "a number")
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    ),
    *(({}, name, "an object") for name in ("text", "reasoning", "metadata", "stream_options")),
    ({}, "background_options", "an object"),
    ({"background_options": {}}, "background_options.completion_window", "a string"),
    ({"background_options": {}}, "background_options.continuation_id", "a string"),
    ({}, "conversation", "a string or an object"),
    ({"conversation": {}}, "conversation.id", "a string"),
    ({"stream": True, "stream_options": {}}, "stream_options.include_obfuscation", "a boolean"),
    ({}, "include", "an array"),
    ({"include": [""]}, "include[0]", "a string"),
    ({"metadata": {}}, "metadata.a", "a string"),
    *(
        ({"reasoning": {}}, f"reasoning.{name}", "a string")
        for name in ("effort", "summary", "generate_summary", "context", "mode")
    ),
    (_SCHEMA, "text.verbosity", "a string"),
    (_SCHEMA, "text.format", "an object"),
    (_SCHEMA, "text.format.type", "a string"),
    (_SCHEMA, "text.format.name", "a string"),
    (_SCHEMA, "text.format.schema", "an object"),
    (_SCHEMA, "text.format.description", "a string"),
    (_SCHEMA, "text.format.strict", "a boolean"),
    ({}, "tools", "an array"),
    (_TOOL, "tools[0]", "an object"),
    (_TOOL, "tools[0].type", "a string"),
    (_TOOL, "tools[0].name", "a string"),
    (_TOOL, "tools[0].description", "a string"),
    (_TOOL, "tools[0].parameters", "an object"),
    (_TOOL, "tools[0].strict", "a boolean"),
    (_CUSTOM, "tools[0].format", "an object"),
    (_CUSTOM, "tools[0].format.syntax", "a string"),
    (_CUSTOM, "tools[0].format.definition", "a string"),
    (_TOOL, "tools[0].defer_loading", "a boolean"),
    (_NAMESPACE_TOOL, "tools[0].name", "a string"),
    (_NAMESPACE_TOOL, "tools[0].description", "a string"),
    (_NAMESPACE_TOOL, "tools[0].tools", "an array"),
    (_NAMESPACE_TOOL, "tools[0].tools[0]", "an object"),
    (_NAMESPACE_TOOL, "tools[0].tools[0].name", "a string"),
    (_SEARCH_TOOL, "tools[0].execution", "a string"),
    (_SEARCH_TOOL, "tools[0].parameters", "an object"),
    (_WEB, "tools[0].search_context_size", "a string"),
    (_WEB, "tools[0].external_web_access", "a boolean"),
    (_WEB, "tools[0].filters", "an object"),
    (_WEB, "tools[0].filters.allowed_domains", "an array"),
    (_WEB, "tools[0].filters.allowed_domains[0]", "a string"),
    (_WEB, "tools[0].filters.blocked_domains", "an array"),
    (_WEB, "tools[0].user_location", "an object"),
    (_WEB, "tools[0].user_location.country", "a string"),
    (_SHELL, "tools[0].environment", "an object"),
    (_SHELL, "tools[0].environment.skills", "an array"),
    (_SHELL, "tools[0].environment.skills[0]", "an object"),
    ({}, "tool_choice", "a string or an object"),
    (_FUNCTION_CHOICE, "tool_choice.namespace", "a string"),
    (_FUNCTION_CHOICE, "tool_choice.type", "a string"),
    (_FUNCTION_CHOICE, "tool_choice.name", "a string"),
    (_ALLOWED, "tool_choice.mode", "a string"),
    (_ALLOWED, "tool_choice.tools", "an array"),
    (_ALLOWED, "tool_choice.tools[0]", "an object"),
    (_ALLOWED, "tool_choice.tools[0].name", "a string"),
    ({}, "input", "a string or an array of input items"),
    (_TYPED, "input[0]", "an input item"),
    (_TYPED, "input[0].type", "a string"),
    (_TYPED, "input[0].id", "a string"),
    (_TYPED, "input[0].role", "a string"),
    (_TYPED, "input[0].status", "a string"),
    (_TYPED, "input[0].content", "a string or an array of content parts"),
    (_TEXT, "input[0].content[0]", "an object"),
    (_TEXT, "input[0].content[0].type", "a string"),
    (_TEXT, "input[0].content[0].text", "a string"),
    (_IMAGE, "input[0].content[0].image_url", "an image URL"),
    (_IMAGE, "input[0].content[0].detail", "a string"),
    (_FILE, "input[0].content[0].filename", "a string"),
    (_FILE, "input[0].content[0].file_data", "a string"),
    (_FILE, "input[0].content[0].file_url", "a string"),
    (_AUDIO, "input[0].content[0].input_audio", "an object"),
    (_AUDIO, "input[0].content[0].input_audio.data", "a string"),
    (_AUDIO, "input[0].content[0].input_audio.format", "a string"),
    (_OUTPUT_TEXT, "input[0].phase", "a string"),
    (_OUTPUT_TEXT, "input[0].content[0].annotations", "an array"),
    (_OUTPUT_TEXT, "input[0].content[0].annotations[0]", "an object"),
    (_OUTPUT_TEXT, "input[0].content[0].logprobs", "an array"),
    (_OUTPUT_TEXT, "input[0].content[0].logprobs[0]", "an object"),
    (message_of({"type": "refusal"}, role="assistant"), "input[0].content[0].refusal", "a string"),
    *(
        (_CALL, f"input[0].{name}", "a string")
        for name in ("call_id", "name", "arguments", "status", "namespace")
    ),
    (
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]},
        "input[0].input",
        "a string",
    ),
    (_CALL_OUTPUT, "input[0].call_id", "a string"),
    (_CALL_OUTPUT, "input[0].output", "a string or an array of content parts"),
    (_CALL_OUTPUT_PART, "input[0].output[0]", "an object"),
    (_CALL_OUTPUT_PART, "input[0].output[0].text", "a string"),
    (_SHELL_CALL, "input[0].call_id", "a string"),
    (_SHELL_CALL, "input[0].action", "an object"),
    (_SHELL_CALL, "input[0].action.commands", "an array"),
    (_SHELL_CALL, "input[0].action.commands[0]", "a string"),
    (_SHELL_CALL, "input[0].action.timeout_ms", "an integer"),
    (_SHELL_CALL, "input[0].environment", "an object"),
    (_SHELL_CALL_OUTPUT, "input[0].output", "an array"),
    (_SHELL_CALL_OUTPUT, "input[0].output[0].stdout", "a string"),
    (_SHELL_CALL_OUTPUT, "input[0].output[0].outcome", "an object"),
    (_SHELL_CALL_OUTPUT, "input[0].output[0].outcome.exit_code", "an integer"),
    (_SHELL_CALL_OUTPUT, "input[0].max_output_length", "an integer"),
    (_LOCAL_SHELL_CALL, "input[0].action.command", "an array"),
    (_LOCAL_SHELL_CALL, "input[0].action.env", "an object"),
    (_LOCAL_SHELL_CALL, "input[0].action.working_directory", "a string"),
    (
        {"input": [{"type": "local_shell_call_output", "call_id": "c"}]},
        "input[0].output",
        "a string",
    ),
    (_PATCH, "input[0].operation", "an object"),
    (_PATCH, "input[0].operation.path", "a string"),
    (_PATCH, "input[0].operation.diff", "a string"),
    (_PATCH_OUTPUT, "input[0].status", "a string"),
    (_PATCH_OUTPUT, "input[0].output", "a string"),
    (_TOOL_SEARCH_OUTPUT, "input[0].execution", "a string"),
    (_TOOL_SEARCH_OUTPUT, "input[0].tools", "an array"),
    (_TOOL_SEARCH_OUTPUT, "input[0].tools[0]", "an object"),
    (_ADDITIONAL_TOOLS, "input[0].role", "a string"),
    (_SCREENSHOT, "input[0].output", "an object"),
    (_SCREENSHOT, "input[0].output.image_url", "an image URL"),
    (_REASONING, "input[0].summary", "an array"),
    (_REASONING, "input[0].summary[0]", "an object"),
    (_REASONING, "input[0].summary[0].text", "a string"),
    (_REASONING, "input[0].content", "an array"),
    (_REASONING, "input[0].content[0].text", "a string"),
    (_REASONING, "input[0].encrypted_content", "a string"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id", "a string"),
    ({"input": [{"type": "mcp_approval_response"}]}, "input[0].approval_request_id", "a string"),
    (
        {"input": [{"type": "mcp_approval_response", "approval_request_id": "a"}]},
        "input[0].approve",
        "a boolean",
    ),
    ({"input": [{"type": "web_search_call"}]}, "input[0].status", "a string"),
]
"""(a body, the place of a field in it, what errors name as expected there)."""


def with_value(body: JSON, where: str, value: Any) -> JSON:
    """A copy of `body` with `value` at `where`, as errors name places: `input[0].content`."""
    changed = copy.deepcopy(body)
    *way, last = (int(step) if step.isdigit() else step for step in re.findall(r"\w+", where))
    inside: Any = changed
    for step in way:
        inside = inside[step]
    inside[last] = value
    return changed


def _wrong_types() -> Iterator[BadBody]:
    for body, where, expected in FIELDS:
        for kind in (
            kind for kind in VALUES if kind not in ACCEPTED_TYPES.get(expected, {expected})
        ):
            message = f"Invalid type for '{where}': expected {expected}, but got {kind} instead."
            yield BadBody(
                f"{where} is {kind}",
                with_value(body, where, VALUES[kind]),
                where,
                "invalid_type",
                message,
            )


def _out_of_range() -> Iterator[BadBody]:
    ranges: list[tuple[str, str, float, float, float]] = [
        ("max_output_tokens", "integer", 16, 2**31 - 1, 1),
        ("max_tool_calls", "integer", 1, 2**31 - 1, 1),
        ("top_logprobs", "integer", 0, 20, 1),
        ("temperature", "decimal", 0, 2, 0.001),
        ("top_p", "decimal", 0, 1, 0.001),
        ("presence_penalty", "decimal", -2, 2, 0.001),
        ("frequency_penalty", "decimal", -2, 2, 0.001),
    ]
    for name, kind, low, high, step in ranges:
        for given in (low - step, -(2**63) if kind == "integer" else -1e308):
            shown = str(given) if abs(given) < 1e18 else "a value out of range"
            message = (
                f"Invalid '{name}': {kind} below minimum value. Expected a value >= {low}, but "
                f"got {shown} instead."
            )
            yield BadBody(
                f"{name} is {given:g}", {name: given}, name, f"{kind}_below_min_value", message
            )
        for given in (high + step, 2**64 - 1 if kind == "integer" else 1e308):
            shown = str(given) if abs(given) < 1e18 else "a value out of range"
            message = (
                f"Invalid '{name}': {kind} above maximum value. Expected a value <= {high}, but "
                f"got {shown} instead."
            )
            yield BadBody(
                f"{name} is {given:g}", {name: given}, name, f"{kind}_above_max_value", message
            )


TOOL_TYPES = (
    "'function', 'custom', 'namespace', 'tool_search', 'local_shell', 'shell', "
    "'apply_patch', 'computer', 'computer_use', 'computer_use_preview', "
    "'web_search', 'web_search_2025_08_26', "
    "'web_search_preview', 'web_search_preview_2025_03_11', 'file_search', 'image_generation', "
    "'mcp', and 'code_interpreter'"
)
UNSUPPORTED_TOOL_TYPES = ("Function", "function ", "")
INPUT_PARTS = "'input_text', 'input_image', 'input_file', and 'input_audio'"


def unsupported(where: str, given: str, supported: str) -> tuple[str, str, str]:
    """Param, code and message for a value that is not in its list."""
    return where, "invalid_value", f"Invalid value: '{given}'. Supported values are: {supported}."


UNKNOWN = [
    *(
        BadBody(
            f"a tool of type {kind!r}",
            {"tools": [{**FUNCTION, "type": kind}]},
            *unsupported("tools[0].type", kind, TOOL_TYPES),
        )
        for kind in UNSUPPORTED_TOOL_TYPES
    ),
    *(
        BadBody(
            f"a part of type {kind!r}",
            message_of({"type": kind, "text": "x"}),
            *unsupported("input[0].content[0].type", kind, INPUT_PARTS),
        )
        for kind in ("input_video", "refusal", "summary_text")
    ),
    *(
        BadBody(
            f"a part of type {kind!r}, as in Chat Completions",
            message_of({"type": kind, "text": "x"}),
            "input[0].content[0].type",
            "invalid_value",
            f"Invalid value: '{kind}'. Supported values are: {INPUT_PARTS}. In the Responses API, "
            f"a part of this type is called '{ours}'.",
        )
        for kind, ours in (("text", "input_text"), ("image_url", "input_image"))
    ),
    BadBody(
        "a part of a tool's answer that is audio",
        with_value(_CALL_OUTPUT_PART, "input[0].output[0].type", "input_audio"),
        *unsupported(
            "input[0].output[0].type",
            "input_audio",
            "'input_text', 'input_image', and 'input_file'",
        ),
    ),
    BadBody(
        "a thought that is no thought",
        with_value(_REASONING, "input[0].content[0].type", "text"),
        *unsupported("input[0].content[0].type", "text", "'reasoning_text'"),
    ),
    BadBody(
        "an audio format",
        with_value(_AUDIO, "input[0].content[0].input_audio.format", "flac"),
        *unsupported("input[0].content[0].input_audio.format", "flac", "'mp3' and 'wav'"),
    ),
    BadBody(
        "a detail",
        with_value(_IMAGE, "input[0].content[0].detail", "all"),
        *unsupported("input[0].content[0].detail", "all", "'auto', 'low', 'high', and 'original'"),
    ),
    BadBody(
        "a phase",
        with_value(_OUTPUT_TEXT, "input[0].phase", "x"),
        *unsupported("input[0].phase", "x", "'commentary' and 'final_answer'"),
    ),
    BadBody(
        "a service tier",
        {"service_tier": "first"},
        *unsupported(
            "service_tier",
            "first",
            "'auto', 'default', 'flex', 'priority', 'fast', 'scale', and 'ultrafast'",
        ),
    ),
    BadBody(
        "a verbosity",
        {"text": {"verbosity": "loud"}},
        *unsupported("text.verbosity", "loud", "'low', 'medium', and 'high'"),
    ),
    BadBody(
        "a summary",
        {"reasoning": {"summary": "all"}},
        *unsupported("reasoning.summary", "all", "'auto', 'concise', and 'detailed'"),
    ),
    BadBody(
        "a grammar",
        with_value(_CUSTOM, "tools[0].format.syntax", "abnf"),
        *unsupported("tools[0].format.syntax", "abnf", "'lark' and 'regex'"),
    ),
    BadBody(
        "a shell elsewhere",
        with_value(_SHELL, "tools[0].environment.type", "remote"),
        *unsupported(
            "tools[0].environment.type",
            "remote",
            "'local', 'container_auto', and 'container_reference'",
        ),
    ),
    BadBody(
        "a context size",
        with_value(_WEB, "tools[0].search_context_size", "huge"),
        *unsupported("tools[0].search_context_size", "huge", "'low', 'medium', and 'high'"),
    ),
    BadBody(
        "a place of another kind",
        with_value(_WEB, "tools[0].user_location.type", "exact"),
        *unsupported("tools[0].user_location.type", "exact", "'approximate'"),
    ),
    BadBody(
        "a search by both",
        with_value(_SEARCH_TOOL, "tools[0].execution", "both"),
        *unsupported("tools[0].execution", "both", "'server' and 'client'"),
    ),
    BadBody(
        "a namespace of namespaces",
        with_value(_NAMESPACE_TOOL, "tools[0].tools[0].type", "namespace"),
        *unsupported("tools[0].tools[0].type", "namespace", "'function' and 'custom'"),
    ),
    BadBody(
        "an outcome",
        with_value(_SHELL_CALL_OUTPUT, "input[0].output[0].outcome.type", "x"),
        *unsupported("input[0].output[0].outcome.type", "x", "'exit' and 'timeout'"),
    ),
    BadBody(
        "an operation",
        with_value(_PATCH, "input[0].operation.type", "rename_file"),
        *unsupported(
            "input[0].operation.type",
            "rename_file",
            "'create_file', 'update_file', and 'delete_file'",
        ),
    ),
    BadBody(
        "tools from a user",
        with_value(_ADDITIONAL_TOOLS, "input[0].role", "user"),
        *unsupported("input[0].role", "user", "'developer'"),
    ),
    BadBody(
        "a mode",
        with_value(_ALLOWED, "tool_choice.mode", "none"),
        *unsupported("tool_choice.mode", "none", "'auto' and 'required'"),
    ),
    BadBody("an empty name", {"": 1}, "", "unknown_parameter", "Unknown parameter: ''."),
    BadBody(
        "a name with a NUL",
        {"a\0b": 1},
        "a\ufffdb",
        "unknown_parameter",
        "Unknown parameter: 'a\ufffdb'.",
    ),
    BadBody(
        "a name with half a character",
        {"a\ud800": 1},
        "a\ufffd",
        "unknown_parameter",
        "Unknown parameter: 'a\ufffd'.",
    ),
    BadBody(
        "output_text, which only answers have",
        {"output_text": "x"},
        "output_text",
        "unknown_parameter",
        "Unknown parameter: 'output_text'.",
    ),
    *(
        BadBody(
            f"chat's {name}",
            {name: True},
            name,
            "unknown_parameter",
            f"Unknown parameter: '{name}'. In the Responses API, this parameter is called {ours}.",
        )
        for name, ours in (
            ("reasoning_effort", "'reasoning.effort'"),
            ("verbosity", "'text.verbosity'"),
            ("logprobs", "'include' with 'message.output_text.logprobs', and 'top_logprobs'"),
        )
    ),
]


def duplicate(name: str) -> tuple[str, str, str]:
    """Param, code and message for an item that occurs twice."""
    return (
        "input",
        "invalid_value",
        (
            f"Duplicate item found with id {name}. Remove duplicate items from your input and "
            "try again."
        ),
    )


def malformed(name: str) -> tuple[str, str, str]:
    """Param, code and message for a malformed id."""
    where, expected = (
        "previous_response_id",
        "Expected an ID that contains letters, numbers, underscores, or dashes",
    )
    return (
        where,
        "invalid_value",
        f"Invalid '{where}': '{name}'. {expected}, but this value contained additional characters.",
    )


def unpaired(call: str, noun: str = "function call") -> tuple[str, None, str]:
    """Param, code and message for a call without an output."""
    return "input", None, f"No tool output found for {noun} {call}."


def uncalled(call: str, noun: str = "function call output") -> tuple[str, None, str]:
    """Param, code and message for an output without a call."""
    return "input", None, f"No tool call found for {noun} with call_id {call}."


def call(name: str) -> JSON:
    """A function call."""
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def answer(name: str) -> JSON:
    """The output of a function call."""
    return {"type": "function_call_output", "call_id": name, "output": "x"}


CUSTOM_CALL: JSON = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
CUSTOM_ANSWER: JSON = {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}

PAIRS = [
    BadBody(
        "two calls, one answered", {"input": [call("a"), call("b"), answer("a")]}, *unpaired("b")
    ),
    BadBody("an answer before its call", {"input": [answer("a"), call("a")]}, *uncalled("a")),
    BadBody(
        "a call answered and made again",
        {"input": [call("a"), answer("a"), call("a")]},
        *unpaired("a"),
    ),
    BadBody("a custom call", {"input": [CUSTOM_CALL]}, *unpaired("c", "custom tool call")),
    BadBody(
        "a custom answer", {"input": [CUSTOM_ANSWER]}, *uncalled("c", "custom tool call output")
    ),
    BadBody("an id with a NUL", {"input": [answer("c\0")]}, *uncalled("c\ufffd")),
]

IDS = [
    BadBody(
        "two calls of one id",
        {"input": [{**call("a"), "id": "fc_1"}, {**call("b"), "id": "fc_1"}]},
        *duplicate("fc_1"),
    ),
    BadBody(
        "a reference to an item that is there",
        {"input": [{**USER, "id": "msg_1"}, {"id": "msg_1"}]},
        *duplicate("msg_1"),
    ),
    BadBody("an empty id", {"previous_response_id": ""}, *malformed("")),
    BadBody("an id with a slash", {"previous_response_id": "resp_/../1"}, *malformed("resp_/../1")),
    BadBody("an id with a NUL", {"previous_response_id": "resp_\0"}, *malformed("resp_\ufffd")),
    BadBody("an id in another alphabet", {"previous_response_id": "resp_é"}, *malformed("resp_é")),
    BadBody(
        "an id that ends its line", {"previous_response_id": "resp_1\n"}, *malformed("resp_1\n")
    ),
    BadBody(
        "an id of ten thousand letters",
        {"previous_response_id": "é" * 10_000},
        *malformed("é" * 100 + "…"),
    ),
    BadBody(
        "an id of no response",
        {"previous_response_id": "resp_1"},
        "previous_response_id",
        "previous_response_not_found",
        "Previous response with id 'resp_1' not found.",
    ),
    BadBody(
        "a reference to nothing",
        {"input": [{"type": "item_reference", "id": "msg_none"}]},
        "input[0]",
        "item_not_found",
        (
            "Item with id 'msg_none' not found. Items of responses created with 'store': false "
            "cannot be referred to."
        ),
    ),
]

SIZES = [
    BadBody(
        "a hundred thousand items and one",
        {"input": [USER] * 100_001},
        "input",
        "array_above_max_length",
        (
            "Invalid 'input': array too long. Expected an array with maximum length 100000, but "
            "got an array with length 100001 instead."
        ),
    ),
    BadBody(
        "an item behind a hundred thousand",
        {"input": [*[USER] * 99_999, {"role": "king", "content": ""}]},
        *unsupported("input[99999].role", "king", "'user', 'system', 'developer', and 'assistant'"),
    ),
]

BODIES = [*_wrong_types(), *_out_of_range(), *UNKNOWN, *PAIRS, *IDS, *SIZES]

INVALID_JSON: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("half", b'{"a": '),
    ("two", b"{} {}"),
    ("invalid UTF-8", b'{"a": "\xff"}'),
    ("invalid UTF-8 outside of a string", b"\xff"),
    ("an encoded surrogate", b'"\xed\xa0\x80"'),
    ("invalid UTF-8 beside a surrogate", b'["\\ud800", "\xff"]'),
    ("UTF-16", '{"a": 1}'.encode("utf-16")),
    ("a byte order mark", b"\xef\xbb\xbf{}"),
    ("NaN", b"[NaN]"),
    ("NaN beside a surrogate", rb'["\ud800", NaN]'),
    ("-Infinity beside a surrogate", rb'["\ud800", -Infinity]'),
    ("191 levels", b"[" * 191 + b"]" * 191),
    ("150 000 levels", b"[" * 150_000),
    ("300 000 levels of objects", b'{"a":' * 300_000),
    ("300 000 levels beside a surrogate", rb'["\ud800", ' + b"[" * 300_000),
    ("900 levels beside 65 bits", b"[18446744073709551616, " + b"[" * 900 + b"]" * 901),
    ("900 levels beside a surrogate", rb'["\ud800", ' + b"[" * 900 + b"]" * 901),
    ("a raw control character", b'"\x00"'),
    ("a comma too many", b'{"model": "m", "input": "x",}'),
    ("single quotes", b"{'model': 'm'}"),
    ("a comment", b'{"model": "m" /* m */}'),
    ("an invalid escape", b'{"model": "\\x"}'),
    ("half an escape", b'{"model": "\\ud8'),
    ("an overlong NUL", b'{"model": "\xc0\x80"}'),
    ("UTF-8 cut off", b'{"model": "\xe2\x82'),
    ("a thousand lists deep", b'{"model": "m", "input": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
    ("a thousand objects deep", b'{"metadata": ' + b'{"a":' * 1000 + b"1" + b"}" * 1001),
    ("a thousand deep in a schema", b'{"tools": [{"a": ' + b'{"a":' * 1000 + b"1" + b"}" * 1002),
    (
        "a thousand deep beside half a character",
        b'{"a": "\\ud800", "b": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    ),
]
"""Bodies that are no JSON, or JSON that cannot be stored."""
