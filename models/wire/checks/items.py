"""Input items by type: the fields that each may have; and the content parts of messages, and of the
outputs of tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope, const
from models.wire.checks import basic
from models.wire.checks.basic import (
    AnyJson,
    Array,
    Boolean,
    Check,
    Choice,
    Integer,
    Record,
    String,
    Tagged,
)
from models.wire.checks.faults import missing, wrong_type
from models.wire.checks.tools import ADDED_TOOLS, FOUND_TOOLS

TEXT = basic.String()
OPEN_OBJECT = basic.OpenObject()

_URL_SCHEMES = ("https://", "http://", "data:")
FILE_ID = basic.String(at_most=64, pattern="[A-Za-z0-9_-]+")
"""The id of a file of this server, or of an upstream's account (docs/files.md)."""

_IMAGE = basic.Record(
    {},
    {
        "image_url": basic.String(expected="an image URL"),
        "file_id": FILE_ID,
        "detail": basic.Choice("auto", "low", "high", "original"),
    },
)
_IMAGE_SOURCES = ("image_url", "file_id")
_FILE = basic.Record(
    {}, {"filename": TEXT, "file_data": TEXT, "file_url": TEXT, "file_id": FILE_ID}
)
_FILE_SOURCES = ("file_data", "file_url", "file_id")
_OUTPUT_TEXT = basic.Record(
    {"text": TEXT}, {"annotations": basic.Array(OPEN_OBJECT), "logprobs": basic.Array(OPEN_OBJECT)}
)


@dataclass(frozen=True, slots=True)
class _Image(basic.Check):
    """An `input_image`: an http(s) or data URL, or the id of a file."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _IMAGE(value, where)
        _require_one_source(part, where, "an 'input_image'")
        if "image_url" in part and not part["image_url"].startswith(_URL_SCHEMES):
            message = (
                f"Invalid '{where}.image_url'. Expected a valid URL, "
                "but got a value with an invalid format."
            )
            raise InvalidRequest(message, param=f"{where}.image_url", code="invalid_value")
        return {"detail": "auto", **part}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _IMAGE.schema(scope)
        pattern = f"^({'|'.join(_URL_SCHEMES)})"
        forms = _exactly_one(_IMAGE_SOURCES)
        forms[0]["properties"]["image_url"]["pattern"] = pattern
        required = {} if scope.is_input else {"required": ["detail"]}
        return {**schema, **required, "anyOf": forms}


_SCREENSHOT_PART = basic.Record(
    {},
    {
        "image_url": basic.String(pattern=r"(https?://|data:)\S*", expected="an image URL"),
        "file_id": FILE_ID,
    },
)


@dataclass(frozen=True, slots=True)
class Screenshot(basic.Check):
    """A `computer_screenshot`: its URL, or the id of a file."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _SCREENSHOT_PART(value, where)
        _require_one_source(part, where, "a 'computer_screenshot'")
        return part

    def schema(self, scope: SchemaScope) -> Schema:
        return {**_SCREENSHOT_PART.schema(scope), "anyOf": _exactly_one(_IMAGE_SOURCES)}


def _require_one_source(part: dict[str, Any], where: str, noun: str) -> None:
    if ("image_url" in part) == ("file_id" in part):
        message = f"Invalid '{where}': {noun} needs exactly one of 'image_url' and 'file_id'."
        raise InvalidRequest(message, param=where, code="invalid_value")


@dataclass(frozen=True, slots=True)
class _File(basic.Check):
    """An `input_file`: its data, its URL or its id."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _FILE(value, where)
        sources = sum(source in part for source in _FILE_SOURCES)
        if not sources:
            raise missing(f"{where}.file_data")
        if sources > 1:
            message = (
                f"Invalid '{where}': an 'input_file' needs exactly one of "
                "'file_data', 'file_url' and 'file_id'."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        return part

    def schema(self, scope: SchemaScope) -> Schema:
        return {**_FILE.schema(scope), "anyOf": _exactly_one(_FILE_SOURCES)}


def _exactly_one(sources: Sequence[str]) -> list[Schema]:
    """The forms of an object that has one of these fields; the others are absent or null."""
    return [
        {
            "properties": {
                source: {"type": "string"},
                **{other: NULL for other in sources if other != source},
            },
            "required": [source],
        }
        for source in sources
    ]


@dataclass(frozen=True, slots=True)
class _OutputText(basic.Check):
    """An `output_text`; its annotations are empty if the client left them out."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return {"annotations": [], **_OUTPUT_TEXT(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _OUTPUT_TEXT.schema(scope)
        if scope.is_input:
            return schema
        return {**schema, "required": ["annotations", *schema["required"]]}


_OUTPUT_PARTS: dict[str, basic.Check] = {
    "input_text": basic.Record({"text": TEXT}),
    "input_image": _Image(),
    "input_file": _File(),
}
_AUDIO = basic.Record(
    {"input_audio": basic.Record({"data": TEXT, "format": basic.Choice("mp3", "wav")})}
)

INPUT_CONTENT = basic.Array(basic.Tagged({**_OUTPUT_PARTS, "input_audio": _AUDIO}))
"""Parts of a message that is not the model's."""
ASSISTANT_CONTENT = basic.Array(
    basic.Tagged({"output_text": _OutputText(), "refusal": basic.Record({"refusal": TEXT})})
)
"""Parts of a message of the model."""
TOOL_OUTPUT = basic.ByJsonType(
    "a string or an array of content parts",
    {str: TEXT, list: basic.Component("ResultContent", basic.Array(basic.Tagged(_OUTPUT_PARTS)))},
)
"""What a client's tool returned."""


_ASSISTANT = "assistant"
_OTHER_ROLES = ("user", "system", "developer")
_STATUS = Choice("in_progress", "completed", "incomplete")
_CALL_ID = String(non_empty=True, at_most=64)
_NAME = String(non_empty=True)
_COUNT = Integer(0, 2**31 - 1)
_ANY = AnyJson()


@dataclass(frozen=True, slots=True)
class _StringOrList(Check):
    """The content of a message before its role is known: a string or a list."""

    def __call__(self, value: Any, where: str) -> Any:
        if type(value) is not str and type(value) is not list:
            raise wrong_type(where, "a string or an array of content parts", value)
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {}


_MESSAGE = Record(
    {"role": Choice(*_OTHER_ROLES, _ASSISTANT), "content": _StringOrList()}, {"status": _STATUS}
)
_PHASE = Record({}, {"phase": Choice("commentary", "final_answer")})

# Messages are the most frequent items, so their check holds bound calls (see `Call`).
_check_message = _MESSAGE.__call__
_check_phase = _PHASE.__call__
_check_input_content = INPUT_CONTENT.__call__
_check_assistant_content = ASSISTANT_CONTENT.__call__


@dataclass(frozen=True, slots=True)
class _Message(Check):
    """A message. The role decides which parts its content may have; a string becomes one part."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        message = _check_message(value, where)
        content = message["content"]
        if message["role"] != _ASSISTANT:
            message["content"] = (
                [{"type": "input_text", "text": content}]
                if type(content) is str
                else _check_input_content(content, f"{where}.content")
            )
            return message
        message["content"] = (
            [{"type": "output_text", "text": content, "annotations": []}]
            if type(content) is str
            else _check_assistant_content(content, f"{where}.content")
        )
        return {**message, **_check_phase(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        input_content = scope.component("Content", INPUT_CONTENT)
        assistant_content = scope.component("AssistantContent", ASSISTANT_CONTENT)
        by_role: list[Schema] = [
            {
                "properties": {
                    "role": {"enum": list(_OTHER_ROLES)},
                    "content": _text_or(input_content, scope),
                }
            },
            {
                "properties": {
                    "role": const(_ASSISTANT),
                    "content": _text_or(assistant_content, scope),
                    **_PHASE.schema(scope)["properties"],
                }
            },
        ]
        return {**_MESSAGE.schema(scope), "anyOf": by_role}


def _text_or(parts: Schema, scope: SchemaScope) -> Schema:
    return {"anyOf": [{"type": "string"}, parts]} if scope.is_input else parts


_REASONING = Record(
    {},
    {
        "summary": Array(Tagged({"summary_text": Record({"text": TEXT})})),
        "content": Array(Tagged({"reasoning_text": Record({"text": TEXT})})),
        "encrypted_content": TEXT,
        "status": _STATUS,
    },
)


@dataclass(frozen=True, slots=True)
class _ReasoningItem(Check):
    """A reasoning item; its summary is empty if the client left it out."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return {"summary": [], **_REASONING(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _REASONING.schema(scope)
        return schema if scope.is_input else {**schema, "required": ["summary"]}


_LOCAL_SHELL_OUTPUT = Record(
    {"output": TEXT}, {"call_id": _CALL_ID, "id": _CALL_ID, "status": _STATUS}
)


@dataclass(frozen=True, slots=True)
class _LocalShellOutput(Check):
    """The output of a local shell call. The id of the call is in `call_id` or, as in the types of
    OpenAI's SDK, in `id`."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        item = _LOCAL_SHELL_OUTPUT(value, where)
        call_id = item.pop("call_id", None) or item.pop("id", None)
        if call_id is None:
            raise missing(f"{where}.call_id")
        item.pop("id", None)
        return {"call_id": call_id, **item}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _LOCAL_SHELL_OUTPUT.schema(scope)
        if not scope.is_input:
            return {**schema, "required": [*schema["required"], "call_id"]}
        either = [
            {"properties": {name: _CALL_ID.schema(scope)}, "required": [name]}
            for name in ("call_id", "id")
        ]
        return {**schema, "anyOf": either}


@dataclass(frozen=True, slots=True)
class _McpInputSchema(Check):
    """What an MCP server calls the schema of its tool: any JSON, stored unchanged.

    A tool whose schema is not an object is left out when tools are offered to the model.
    """

    def __call__(self, value: Any, _where: str) -> Any:
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {}


def _server_tool_item(*names: str) -> Record:
    """An item of a server tool, which is part of a history: its documented fields, unchecked."""
    return Record({}, {"status": TEXT, **dict.fromkeys(names, _ANY)})


_MCP_TOOL = Record(
    {"name": _NAME},
    {"input_schema": _McpInputSchema(), "description": TEXT, "annotations": OPEN_OBJECT},
)
_MCP_CALL = {"server_label": TEXT, "name": _NAME, "arguments": TEXT}
_STRINGS = Array(TEXT)
_EXECUTION = Choice("client", "server")
_SHELL_ACTION = Record({"commands": _STRINGS}, {"timeout_ms": _COUNT, "max_output_length": _COUNT})
_EXIT_CODE = Integer(-(2**31), 2**31 - 1)
_SHELL_OUTPUT = Array(
    Record(
        {
            "stdout": TEXT,
            "stderr": TEXT,
            "outcome": Tagged({"exit": Record({"exit_code": _EXIT_CODE}), "timeout": Record({})}),
        }
    )
)
_LOCAL_SHELL_ACTION = Tagged(
    {
        "exec": Record(
            {"command": _STRINGS},
            {"env": OPEN_OBJECT, "timeout_ms": _COUNT, "user": TEXT, "working_directory": TEXT},
        )
    },
)
_PATCH = Tagged(
    {
        **dict.fromkeys(("create_file", "update_file"), Record({"path": TEXT, "diff": TEXT})),
        "delete_file": Record({"path": TEXT}),
    }
)
_SCREENSHOT = Tagged({"computer_screenshot": Screenshot()})


def _call(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Record:
    """A call of a client tool, or its output."""
    return Record({"call_id": _CALL_ID, **fields}, {**(optional or {}), "status": _STATUS})


ITEM_CHECKS: dict[str, Check] = {
    "message": _Message(),
    "function_call": _call({"name": _NAME, "arguments": TEXT}, {"namespace": TEXT}),
    "function_call_output": _call({"output": TOOL_OUTPUT}),
    "custom_tool_call": _call({"name": _NAME, "input": TEXT}, {"namespace": TEXT}),
    "custom_tool_call_output": _call({"output": TOOL_OUTPUT}),
    "reasoning": _ReasoningItem(),
    "item_reference": Record({"id": _NAME}),
    "web_search_call": _server_tool_item("action", "results"),
    "file_search_call": _server_tool_item("queries", "results"),
    "code_interpreter_call": _server_tool_item("container_id", "code", "outputs"),
    "image_generation_call": Record(
        {},
        {
            "status": TEXT,
            "result": TEXT,
            **dict.fromkeys(
                (
                    *("action", "background", "output_format", "quality", "revised_prompt"),
                    *("size", "error", "svg_usage"),
                ),
                _ANY,
            ),
        },
    ),
    "mcp_list_tools": Record(
        {"server_label": TEXT, "tools": Array(_MCP_TOOL)}, {"error": TEXT, "status": TEXT}
    ),
    "mcp_call": Record(
        _MCP_CALL, {"output": TEXT, "error": _ANY, "approval_request_id": TEXT, "status": TEXT}
    ),
    "mcp_approval_request": Record(_MCP_CALL, {"status": TEXT}),
    "mcp_approval_response": Record(
        {"approval_request_id": TEXT, "approve": Boolean()}, {"reason": TEXT}
    ),
    "computer_call": Record(
        {"call_id": _CALL_ID},
        {
            "status": _STATUS,
            **dict.fromkeys(("action", "actions", "pending_safety_checks"), _ANY),
        },
    ),
    "computer_call_output": _call({"output": _SCREENSHOT}, {"acknowledged_safety_checks": _ANY}),
    "local_shell_call": _call({"action": _LOCAL_SHELL_ACTION}),
    "local_shell_call_output": _LocalShellOutput(),
    "shell_call": _call({"action": _SHELL_ACTION}, {"environment": OPEN_OBJECT}),
    "shell_call_output": _call({"output": _SHELL_OUTPUT}, {"max_output_length": _COUNT}),
    "apply_patch_call": _call({"operation": _PATCH}),
    "apply_patch_call_output": Record(
        {"call_id": _CALL_ID, "status": Choice("completed", "failed")}, {"output": TEXT}
    ),
    "tool_search_call": Record(
        {"arguments": _ANY}, {"call_id": _CALL_ID, "execution": _EXECUTION, "status": _STATUS}
    ),
    "tool_search_output": Record(
        {"tools": FOUND_TOOLS}, {"call_id": _CALL_ID, "execution": _EXECUTION, "status": _STATUS}
    ),
    "additional_tools": Record({"role": Choice("developer"), "tools": ADDED_TOOLS}),
    "compaction": Record({"encrypted_content": _NAME}, {"status": _STATUS}),
    "compaction_trigger": Record({}),
    "program": _server_tool_item("call_id", "code", "fingerprint"),
    "program_output": _server_tool_item("call_id", "result"),
}
"""type -> check of its fields, without `id` and `type`. Types that are not here are refused."""

REFUSED_ITEMS = {
    "configuration_update": "the configuration of a response does not change within its input. "
    "Send 'reasoning' and 'text' with the request"
}
"""Other types that OpenAI's API has -> why they are refused, and what to do instead."""
