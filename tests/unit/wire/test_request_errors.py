"""Every error of a create request: its param, code and message (docs/wire.md)."""

from dataclasses import dataclass
from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.request import parse_create

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SEARCH = {"type": "web_search"}
NO_SEARCH_CHOICE = (
    "Tool choice demands a web search, and this server has no search provider: "
    "its operator can set BACKBURNER_WEB_SEARCH__PROVIDER."
)
SUPPORTED_TOOLS = (
    "Supported values are: 'function', 'custom', 'namespace', 'tool_search', 'local_shell', "
    "'shell', 'apply_patch', 'computer', 'computer_use', 'computer_use_preview', 'web_search', "
    "'web_search_2025_08_26', 'web_search_preview', 'web_search_preview_2025_03_11', "
    "'file_search', 'image_generation', 'mcp', and 'code_interpreter'."
)


@dataclass(frozen=True)
class Case:
    """One change to a valid request that makes it wrong; ABSENT removes a field."""

    name: str
    change: dict[str, Any]
    param: str | None
    code: str | None
    message: str


ABSENT = object()


def wrong_type(param: str, expected: str, got: str) -> str:
    return f"Invalid type for '{param}': expected {expected}, but got {got} instead."


def bounds(param: str, kind: str, side: str, bound: str, got: str) -> str:
    return (
        f"Invalid '{param}': {kind} {side} value. Expected a value {bound}, but got {got} instead."
    )


def message(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"input": [{"role": role, "content": list(content)}]}


TOP = [
    Case(
        "no model",
        {"model": ABSENT},
        "model",
        "missing_required_parameter",
        "Missing required parameter: 'model'.",
    ),
    Case(
        "null model",
        {"model": None},
        "model",
        "missing_required_parameter",
        "Missing required parameter: 'model'.",
    ),
    Case(
        "empty model",
        {"model": ""},
        "model",
        "empty_string",
        "Invalid 'model': empty string. Expected a string with minimum length 1, but got an "
        "empty string instead.",
    ),
    Case(
        "model of a number",
        {"model": 1},
        "model",
        "invalid_type",
        wrong_type("model", "a string", "an integer"),
    ),
    Case(
        "no input",
        {"input": ABSENT},
        "input",
        "missing_required_parameter",
        "Missing required parameter: 'input'.",
    ),
    Case(
        "input object",
        {"input": {}},
        "input",
        "invalid_type",
        wrong_type("input", "a string or an array of input items", "an object"),
    ),
    Case(
        "no items",
        {"input": []},
        "input",
        "empty_array",
        "Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty "
        "array instead.",
    ),
    Case(
        "input too long",
        {"input": "x" * 10_485_761},
        "input",
        "string_above_max_length",
        "Invalid 'input': string too long. Expected a string with maximum length 10485760, but "
        "got a string with length 10485761 instead.",
    ),
    Case(
        "unknown", {"colour": "red"}, "colour", "unknown_parameter", "Unknown parameter: 'colour'."
    ),
    *(
        Case(
            f"chat's {name}",
            {name: []},
            name,
            "unknown_parameter",
            f"Unknown parameter: '{name}'. In the Responses API, this parameter is called "
            f"'{ours}'.",
        )
        for name, ours in (
            ("messages", "input"),
            ("response_format", "text.format"),
            ("max_tokens", "max_output_tokens"),
            ("max_completion_tokens", "max_output_tokens"),
            ("functions", "tools"),
            ("function_call", "tool_choice"),
        )
    ),
    Case(
        "prompt",
        {"prompt": {"id": "pmpt_1"}},
        "prompt",
        "unsupported_parameter",
        "'prompt' is not supported: this server keeps no prompt templates. Send the text in "
        "'instructions' and 'input'.",
    ),
    Case(
        "background unstored",
        {"background": True, "store": False},
        "background",
        "unsupported_parameter",
        "'background' needs 'store': true, because a background response is fetched later.",
    ),
    Case(
        "background word",
        {"background": "true"},
        "background",
        "invalid_type",
        wrong_type("background", "a boolean", "a string"),
    ),
    Case(
        "malformed conversation",
        {"conversation": {"id": "conv 1!"}},
        "conversation.id",
        "invalid_value",
        "Invalid 'conversation.id': 'conv 1!'. Expected an ID that contains letters, numbers, "
        "underscores, or dashes, "
        "but this value contained additional characters.",
    ),
    Case(
        "conversation and previous response",
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "conversation",
        "mutually_exclusive_parameters",
        "Mutually exclusive parameters. Ensure you are only providing one of: "
        "'previous_response_id' or 'conversation'.",
    ),
    Case(
        "conversation list",
        {"conversation": []},
        "conversation",
        "invalid_type",
        wrong_type("conversation", "a string or an object", "an array"),
    ),
    Case(
        "malformed id",
        {"previous_response_id": "resp 1!"},
        "previous_response_id",
        "invalid_value",
        "Invalid 'previous_response_id': 'resp 1!'. Expected an ID that contains letters, "
        "numbers, underscores, or dashes, "
        "but this value contained additional characters.",
    ),
    Case(
        "stream_options alone",
        {"stream_options": {}},
        "stream_options",
        "invalid_value",
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    ),
    Case(
        "a window of a foreground response",
        {"background_options": {"completion_window": "soonest"}},
        "background_options.completion_window",
        "invalid_value",
        "'background_options.completion_window' needs 'background': true.",
    ),
    Case(
        "a thread of a foreground response",
        {"background_options": {"continuation_id": "a"}},
        "background_options.continuation_id",
        "invalid_value",
        "'background_options.continuation_id' needs 'background': true.",
    ),
    Case(
        "no options of a foreground response",
        {"background_options": {}},
        "background_options",
        "invalid_value",
        "'background_options' needs 'background': true.",
    ),
    Case(
        "a streamed window",
        {
            "background": True,
            "stream": True,
            "background_options": {"completion_window": "2h"},
        },
        "background_options.completion_window",
        "invalid_value",
        "The completion window '2h' needs 'stream': false, or no 'stream'.",
    ),
    Case(
        "a window with a service tier",
        {
            "background": True,
            "service_tier": "flex",
            "background_options": {"completion_window": "8h"},
        },
        "background_options.completion_window",
        "invalid_value",
        "The completion window '8h' needs standard processing: leave 'service_tier' out, or send "
        "'auto' or 'default'.",
    ),
    Case(
        "an unknown window",
        {"background": True, "background_options": {"completion_window": "24h"}},
        "background_options.completion_window",
        "invalid_value",
        "Invalid value: '24h'. Supported values are: 'soonest', '2h', and '8h'.",
    ),
    Case(
        "truncation",
        {"truncation": "middle"},
        "truncation",
        "invalid_value",
        "Invalid value: 'middle'. Supported values are: 'auto' and 'disabled'.",
    ),
]

NUMBERS = [
    Case(
        "temperature word",
        {"temperature": "hot"},
        "temperature",
        "invalid_type",
        wrong_type("temperature", "a number", "a string"),
    ),
    Case(
        "temperature boolean",
        {"temperature": True},
        "temperature",
        "invalid_type",
        wrong_type("temperature", "a number", "a boolean"),
    ),
    Case(
        "temperature high",
        {"temperature": 2.5},
        "temperature",
        "decimal_above_max_value",
        bounds("temperature", "decimal", "above maximum", "<= 2", "2.5"),
    ),
    Case(
        "temperature low",
        {"temperature": -1},
        "temperature",
        "decimal_below_min_value",
        bounds("temperature", "decimal", "below minimum", ">= 0", "-1"),
    ),
    Case(
        "top_p",
        {"top_p": 1.1},
        "top_p",
        "decimal_above_max_value",
        bounds("top_p", "decimal", "above maximum", "<= 1", "1.1"),
    ),
    Case(
        "huge",
        {"temperature": 10**5000},
        "temperature",
        "decimal_above_max_value",
        bounds("temperature", "decimal", "above maximum", "<= 2", "a value out of range"),
    ),
    Case(
        "too few tokens",
        {"max_output_tokens": 1},
        "max_output_tokens",
        "integer_below_min_value",
        bounds("max_output_tokens", "integer", "below minimum", ">= 16", "1"),
    ),
    Case(
        "part of a token",
        {"max_output_tokens": 16.5},
        "max_output_tokens",
        "invalid_type",
        wrong_type("max_output_tokens", "an integer", "a decimal"),
    ),
    Case(
        "no tool call",
        {"max_tool_calls": 0},
        "max_tool_calls",
        "integer_below_min_value",
        bounds("max_tool_calls", "integer", "below minimum", ">= 1", "0"),
    ),
    Case(
        "top_logprobs",
        {"top_logprobs": 21},
        "top_logprobs",
        "integer_above_max_value",
        bounds("top_logprobs", "integer", "above maximum", "<= 20", "21"),
    ),
]

NESTED = [
    Case(
        "metadata pairs",
        {"metadata": {str(n): "" for n in range(17)}},
        "metadata",
        "object_above_max_properties",
        "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
        "but got an object with 17 properties instead.",
    ),
    Case(
        "metadata key",
        {"metadata": {"k" * 65: "v"}},
        "metadata." + "k" * 65,
        "string_above_max_length",
        f"Invalid 'metadata.{'k' * 65}': string too long. Expected a string with maximum length "
        "64, "
        "but got a string with length 65 instead.",
    ),
    Case(
        "metadata value",
        {"metadata": {"a": "v" * 513}},
        "metadata.a",
        "string_above_max_length",
        "Invalid 'metadata.a': string too long. Expected a string with maximum length 512, but "
        "got a string with length 513 instead.",
    ),
    Case(
        "metadata number",
        {"metadata": {"a": 1}},
        "metadata.a",
        "invalid_type",
        wrong_type("metadata.a", "a string", "an integer"),
    ),
    Case(
        "text word",
        {"text": "json"},
        "text",
        "invalid_type",
        wrong_type("text", "an object", "a string"),
    ),
    Case(
        "text format",
        {"text": {"format": {"type": "xml"}}},
        "text.format.type",
        "invalid_value",
        "Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
    ),
    Case(
        "schema without a name",
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "text.format.name",
        "missing_required_parameter",
        "Missing required parameter: 'text.format.name'.",
    ),
    Case(
        "no schema",
        {"text": {"format": {"type": "json_schema", "name": "n"}}},
        "text.format.schema",
        "missing_required_parameter",
        "Missing required parameter: 'text.format.schema'.",
    ),
    Case(
        "schema name",
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        "text.format.name",
        "invalid_value",
        "Invalid 'text.format.name': string does not match pattern. Expected a string that "
        "matches the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    Case(
        "effort",
        {"reasoning": {"effort": "huge"}},
        "reasoning.effort",
        "invalid_value",
        "Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', "
        "'high', 'xhigh', and 'max'.",
    ),
    Case(
        "include",
        {"include": ["all"]},
        "include[0]",
        "invalid_value",
        "Invalid value: 'all'. Supported values are: 'file_search_call.results', "
        "'web_search_call.results', "
        "'web_search_call.action.sources', 'message.input_image.image_url', "
        "'computer_call_output.output.image_url', "
        "'code_interpreter_call.outputs', 'reasoning.encrypted_content', and "
        "'message.output_text.logprobs'.",
    ),
]

ITEMS = [
    Case(
        "item word",
        {"input": ["hi"]},
        "input[0]",
        "invalid_type",
        wrong_type("input[0]", "an input item", "a string"),
    ),
    Case(
        "item null",
        {"input": [None]},
        "input[0]",
        "invalid_type",
        wrong_type("input[0]", "an input item", "null"),
    ),
    Case(
        "empty item",
        {"input": [{}]},
        "input[0].type",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].type'.",
    ),
    Case(
        "no role",
        {"input": [{"content": "x"}]},
        "input[0].role",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].role'.",
    ),
    Case(
        "role",
        {"input": [{"role": "tool", "content": "x"}]},
        "input[0].role",
        "invalid_value",
        "Invalid value: 'tool'. Supported values are: 'user', 'system', 'developer', and "
        "'assistant'.",
    ),
    Case(
        "no content",
        {"input": [{"role": "user"}]},
        "input[0].content",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].content'.",
    ),
    Case(
        "item id number",
        {"input": [{"id": 1, "role": "user", "content": ""}]},
        "input[0].id",
        "invalid_type",
        wrong_type("input[0].id", "a string", "an integer"),
    ),
    Case(
        "same reference twice",
        {"input": [{"type": "item_reference", "id": "msg_1"}] * 2},
        "input",
        "invalid_value",
        "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.",
    ),
    Case(
        "same id twice",
        {"input": [{"id": "msg_1", "role": "user", "content": ""}] * 2},
        "input",
        "invalid_value",
        "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.",
    ),
    Case(
        "status",
        {"input": [{"role": "user", "content": "", "status": "done"}]},
        "input[0].status",
        "invalid_value",
        "Invalid value: 'done'. Supported values are: 'in_progress', 'completed', and "
        "'incomplete'.",
    ),
    Case(
        "assistant says input_text",
        message({"type": "input_text", "text": "x"}, role="assistant"),
        "input[0].content[0].type",
        "invalid_value",
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    Case(
        "user says output_text",
        message({"type": "output_text", "text": "x"}),
        "input[0].content[0].type",
        "invalid_value",
        "Invalid value: 'output_text'. Supported values are: 'input_text', 'input_image', "
        "'input_file', and 'input_audio'.",
    ),
    Case(
        "no text",
        message({"type": "input_text"}),
        "input[0].content[0].text",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].content[0].text'.",
    ),
    Case(
        "image of nothing",
        message({"type": "input_image"}),
        "input[0].content[0]",
        "invalid_value",
        "Invalid 'input[0].content[0]': an 'input_image' needs exactly one of 'image_url' and "
        "'file_id'.",
    ),
    Case(
        "image twice",
        message({"type": "input_image", "image_url": "data:,", "file_id": "f"}),
        "input[0].content[0]",
        "invalid_value",
        "Invalid 'input[0].content[0]': an 'input_image' needs exactly one of 'image_url' and "
        "'file_id'.",
    ),
    Case(
        "image as in chat",
        message({"type": "input_image", "image_url": {"url": "data:,"}}),
        "input[0].content[0].image_url",
        "invalid_type",
        wrong_type("input[0].content[0].image_url", "an image URL", "an object"),
    ),
    Case(
        "image path",
        message({"type": "input_image", "image_url": "/etc/passwd"}),
        "input[0].content[0].image_url",
        "invalid_value",
        "Invalid 'input[0].content[0].image_url'. Expected a valid URL, but got a value with an "
        "invalid format.",
    ),
    Case(
        "file by a path",
        message({"type": "input_file", "file_id": "a/b"}),
        "input[0].content[0].file_id",
        "invalid_value",
        "Invalid 'input[0].content[0].file_id': string does not match pattern. "
        "Expected a string that matches the pattern '^[A-Za-z0-9_-]+$'.",
    ),
    Case(
        "image by a long id",
        message({"type": "input_image", "file_id": "f" * 65}),
        "input[0].content[0].file_id",
        "string_above_max_length",
        "Invalid 'input[0].content[0].file_id': string too long. Expected a string with maximum "
        "length 64, but got a string with length 65 instead.",
    ),
    Case(
        "file by id and as data",
        message({"type": "input_file", "file_id": "file-1", "file_data": "data:,x"}),
        "input[0].content[0]",
        "invalid_value",
        "Invalid 'input[0].content[0]': an 'input_file' needs exactly one of 'file_data', "
        "'file_url' and 'file_id'.",
    ),
    Case(
        "file by url of a number",
        message({"type": "input_file", "file_url": 1}),
        "input[0].content[0].file_url",
        "invalid_type",
        wrong_type("input[0].content[0].file_url", "a string", "an integer"),
    ),
    Case(
        "file twice",
        message({"type": "input_file", "file_url": "https://x", "file_data": "data:,x"}),
        "input[0].content[0]",
        "invalid_value",
        "Invalid 'input[0].content[0]': an 'input_file' needs exactly one of 'file_data', "
        "'file_url' and 'file_id'.",
    ),
    Case(
        "file of nothing",
        message({"type": "input_file", "filename": "a.pdf"}),
        "input[0].content[0].file_data",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].content[0].file_data'.",
    ),
    Case(
        "call id",
        {"input": [{"type": "function_call", "call_id": "c" * 65, "name": "f", "arguments": ""}]},
        "input[0].call_id",
        "string_above_max_length",
        "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    Case(
        "output object",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]},
        "input[0].output",
        "invalid_type",
        wrong_type("input[0].output", "a string or an array of content parts", "an object"),
    ),
    Case(
        "reference to nothing",
        {"input": [{"type": "item_reference"}]},
        "input[0].id",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].id'.",
    ),
]

TOOLS = [
    Case(
        "tools object",
        {"tools": {}},
        "tools",
        "invalid_type",
        wrong_type("tools", "an array", "an object"),
    ),
    Case(
        "tool word",
        {"tools": ["look"]},
        "tools[0]",
        "invalid_type",
        wrong_type("tools[0]", "an object", "a string"),
    ),
    Case(
        "too many tools",
        {"tools": [FUNCTION] * 129},
        "tools",
        "array_above_max_length",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an "
        "array with length 129 instead.",
    ),
    Case(
        "hosted tool",
        {"tools": [FUNCTION, {"type": "programmatic_tool_calling"}]},
        "tools[1].type",
        "invalid_value",
        "'tools[1].type': 'programmatic_tool_calling' is not supported: the model calls each tool "
        "itself here. Leave this tool out, or use a model whose upstream is a native one "
        "(docs/upstreams.md).",
    ),
    Case(
        "unknown tool",
        {"tools": [FUNCTION, {"type": "no_such"}]},
        "tools[1].type",
        "invalid_value",
        f"Invalid value: 'no_such'. {SUPPORTED_TOOLS}",
    ),
    Case(
        "tool as in chat",
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        "tools[0].name",
        "missing_required_parameter",
        "Missing required parameter: 'tools[0].name'. In the Responses API, 'name', 'description' "
        "and 'parameters' stand beside 'type', not inside 'function'.",
    ),
    Case(
        "tool name",
        {"tools": [{"type": "function", "name": "look.up"}]},
        "tools[0].name",
        "invalid_value",
        "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    Case(
        "tool name length",
        {"tools": [{"type": "function", "name": "x" * 129}]},
        "tools[0].name",
        "string_above_max_length",
        "Invalid 'tools[0].name': string too long. Expected a string with maximum length 128, "
        "but got a string with length 129 instead.",
    ),
    Case(
        "two of a name",
        {"tools": [FUNCTION, {"type": "custom", "name": "look"}]},
        "tools[1].name",
        "invalid_value",
        "Invalid 'tools[1].name': there is already a tool with the name 'look'.",
    ),
    Case(
        "strict word",
        {"tools": [FUNCTION | {"strict": "yes"}]},
        "tools[0].strict",
        "invalid_type",
        wrong_type("tools[0].strict", "a boolean", "a string"),
    ),
    Case(
        "choice word",
        {"tool_choice": "any"},
        "tool_choice",
        "invalid_value",
        "Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
    ),
    Case(
        "required without tools",
        {"tool_choice": "required"},
        "tool_choice",
        "invalid_value",
        "Tool choice 'required' must be specified with 'tools' parameter.",
    ),
    Case(
        "choice of an absent function",
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "hear"}},
        "tool_choice",
        "invalid_value",
        "Tool choice 'hear' not found in 'tools' parameter.",
    ),
    Case(
        "choice of the wrong kind",
        {"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "look"}},
        "tool_choice",
        "invalid_value",
        "Tool choice 'look' not found in 'tools' parameter.",
    ),
    Case(
        "choice of a tool without a name that is there twice",
        {
            "tools": [{"type": "local_shell"}, {"type": "local_shell"}],
            "tool_choice": {"type": "local_shell"},
        },
        "tool_choice",
        "invalid_value",
        "Tool choice 'local_shell' matches several tools.",
    ),
    Case(
        "choice of a hosted tool",
        {"tools": [FUNCTION], "tool_choice": {"type": "file_search"}},
        "tool_choice",
        "invalid_value",
        "Tool choice 'file_search' not found in 'tools' parameter.",
    ),
    Case(
        "a search that nothing runs",
        {"tools": [FUNCTION, SEARCH]},
        "tools[1]",
        "unsupported_parameter",
        "Nothing can run tools of the type 'web_search' here: this server has no search provider. "
        "Leave the tool out, or let the server's operator set BACKBURNER_WEB_SEARCH__PROVIDER.",
    ),
    Case(
        "a search that Codex always sends",
        {"tools": [SEARCH | {"external_web_access": False}]},
        "tools[0]",
        "unsupported_parameter",
        "Nothing can run tools of the type 'web_search' here: this server has no search provider. "
        "Leave the tool out, or let the server's operator set BACKBURNER_WEB_SEARCH__PROVIDER, or "
        "BACKBURNER_WEB_SEARCH__OMIT=true, which leaves it out for clients that always send it.",
    ),
    Case(
        "a search that an item adds",
        {"input": [{"type": "additional_tools", "role": "developer", "tools": [FUNCTION, SEARCH]}]},
        "input[0].tools[1]",
        "unsupported_parameter",
        "Nothing can run tools of the type 'web_search' here: this server has no search provider. "
        "Leave the tool out, or let the server's operator set BACKBURNER_WEB_SEARCH__PROVIDER.",
    ),
    Case(
        "search demanded",
        {"tools": [SEARCH], "tool_choice": SEARCH},
        "tool_choice",
        "invalid_value",
        NO_SEARCH_CHOICE,
    ),
    Case(
        "only search, required",
        {"tools": [SEARCH], "tool_choice": "required"},
        "tool_choice",
        "invalid_value",
        NO_SEARCH_CHOICE,
    ),
    Case(
        "allowed but absent",
        {
            "tools": [FUNCTION],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "hear"}],
            },
        },
        "tool_choice",
        "invalid_value",
        "Tool choice 'hear' not found in 'tools' parameter.",
    ),
    Case(
        "only search allowed",
        {
            "tools": [FUNCTION, SEARCH],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]},
        },
        "tool_choice",
        "invalid_value",
        NO_SEARCH_CHOICE,
    ),
    Case(
        "choice as in chat",
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tool_choice.name",
        "missing_required_parameter",
        "Missing required parameter: 'tool_choice.name'.",
    ),
]

CASES = [*TOP, *NUMBERS, *NESTED, *ITEMS, *TOOLS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_request_is_refused_in_the_words_of_openai(case: Case) -> None:
    body = {"model": "m", "input": "hi", **case.change}
    body = {name: value for name, value in body.items() if value is not ABSENT}
    with pytest.raises(InvalidRequest) as refusal:
        parse_create(body, new_id=str)
    error = refusal.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.message == case.message
    assert (error.param, error.code) == (case.param, case.code)


def test_an_item_of_an_unsupported_type_is_refused() -> None:
    kind = "no_such"
    with pytest.raises(InvalidRequest) as refusal:
        parse_create(
            {"model": "m", "input": [{"role": "user", "content": ""}, {"type": kind}]}, new_id=str
        )
    assert (refusal.value.param, refusal.value.code) == ("input[1].type", "invalid_value")
    assert refusal.value.message.startswith(
        f"Invalid value: '{kind}'. Supported values are: 'message', "
    )


@pytest.mark.parametrize(
    ("body", "got"), [([], "an array"), ("x", "a string"), (None, "null"), (1, "an integer")]
)
def test_a_body_that_is_not_an_object_is_refused(body: Any, got: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_create(body, new_id=str)
    assert refusal.value.message == f"Invalid body: expected a JSON object, but got {got} instead."


def test_an_error_repeats_only_the_start_of_a_long_name() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_create({"model": "m", "input": "hi", "x" * 10_000: 1}, new_id=str)
    assert len(refusal.value.message) < 200
