"""Input items: what clients may send, and the one shape each is stored, listed and handed to the worker in (contract §6.1)."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import (
    Check,
    any_json,
    array,
    boolean,
    choice,
    integer,
    missing,
    open_object,
    record,
    shorten,
    string,
    tagged,
    too_long,
    unsupported_value,
    wrong_type,
)
from models.wire.events import Item
from models.wire.pairing import OUTPUTS
from models.wire.tools import item_tools

NewId = Callable[[str], str]
"""Makes an id from its prefix: `msg` -> `msg_…`."""

MAX_INPUT_STRING = 10_485_760
"""Characters of a string `input` (contract §2)."""

MAX_INPUT_ITEMS = 100_000
"""Items of one `input`. Each costs time in both event loops, where everybody else's streams wait."""

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_STATUS = choice("in_progress", "completed", "incomplete")
_ROLES = ("user", "system", "developer", "assistant")
_TEXT = string()
_CALL_ID = string(non_empty=True, at_most=64)


def input_items(value: Any, new_id: NewId) -> list[Item]:
    """The items of an `input`, normalised; a string is one user message.

    Every item but a reference comes out with `id`, `type` and `status`; a client's id is kept where it has our alphabet. Nothing is
    shared with `value` that would be changed. Raises InvalidRequest naming the place, `input[3].content[0].text`.
    """
    if type(value) is str:
        if len(value) > MAX_INPUT_STRING:
            raise too_long("input", "string", MAX_INPUT_STRING, len(value))
        return [_parse_item({"role": "user", "content": value}, "input", new_id)]
    if type(value) is not list:
        raise wrong_type("input", "a string or an array of input items", value)
    if len(value) > MAX_INPUT_ITEMS:
        raise too_long("input", "array", MAX_INPUT_ITEMS, len(value))
    return _parse_items(value, "input", new_id)


def conversation_items(value: Any, new_id: NewId, limit: int) -> list[Item]:
    """As above for the `items` that are added to a conversation: a list of at most `most`, whose places are named `items[3]`."""
    if type(value) is not list:
        raise wrong_type("items", "an array", value)
    if len(value) > limit:
        raise too_long("items", "array", limit, len(value))
    items = _parse_items(value, "items", new_id)
    if items and items[-1]["type"] == "compaction_trigger":
        place = f"items[{len(items) - 1}]"
        message = f"Invalid '{place}': a 'compaction_trigger' says nothing that could be kept. Send it in the 'input' of a response."
        raise InvalidRequest(message, param=place, code="invalid_value")
    return items


def _parse_items(values: list[Any], where: str, new_id: NewId) -> list[Item]:
    items = [_parse_item(found, f"{where}[{index}]", new_id) for index, found in enumerate(values)]
    _require_last_trigger(items, where)
    _require_distinct_ids(items, where)
    return items


def referenced_ids(items: list[Item]) -> list[str]:
    """The ids that item references name, in order."""
    return [item["id"] for item in items if item["type"] == "item_reference"]


def substitute_references(
    items: list[Item], by_id: Mapping[str, Item], where: str = "input"
) -> list[Item]:
    """The items with each reference replaced by what it names. Raises InvalidRequest naming the first that names nothing."""
    for index, item in enumerate(items):
        if item["type"] == "item_reference" and item["id"] not in by_id:
            message = f"Item with id '{shorten(item['id'])}' not found. Items of responses created with 'store': false cannot be referred to."
            raise InvalidRequest(message, param=f"{where}[{index}]", code="item_not_found")
    return [by_id[item["id"]] if item["type"] == "item_reference" else item for item in items]


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where in a list of items a file by URL stands."""

    item: int
    field: str
    """`content` of a message, `output` of a call's output."""
    part: int
    url: str

    def path(self, item: int, where: str = "input") -> str:
        """The place as an error names it, when its item is `where[item]`."""
        return f"{where}[{item}].{self.field}[{self.part}].file_url"


def file_places(items: list[Item]) -> Iterator[FilePlace]:
    """Every `file_url` in these items, in order."""
    for index, item in enumerate(items):
        field = "output" if item["type"] in OUTPUTS else "content"
        parts = item.get(field)
        if type(parts) is list:
            yield from (
                FilePlace(index, field, at, part["file_url"])
                for at, part in enumerate(parts)
                if "file_url" in part
            )


def _require_last_trigger(items: list[Item], where: str) -> None:
    """Contract §6.1: a compaction is of everything before it, so nothing may follow."""
    for index, item in enumerate(items[:-1]):
        if item["type"] == "compaction_trigger":
            place = f"{where}[{index}]"
            message = f"Invalid '{place}': a 'compaction_trigger' must be the last input item."
            raise InvalidRequest(message, param=place, code="invalid_value")


def _require_distinct_ids(items: list[Item], where: str) -> None:
    """References count: an item that stood twice in a list could not be paged."""
    seen: set[str] = set()
    for item in items:
        if item["id"] in seen:
            raise duplicate_item(item["id"], where)
        seen.add(item["id"])


def duplicate_item(item_id: str, where: str) -> InvalidRequest:
    """An item stands twice, in the list at `where` or there and in its conversation. The words are OpenAI's (continuedev/continue#10723)."""
    message = f"Duplicate item found with id {shorten(item_id)}. Remove duplicate items from your input and try again."
    return InvalidRequest(message, param=where, code="invalid_value")


def _parse_item(value: Any, where: str, new_id: NewId) -> Item:
    if type(value) is not dict:
        raise wrong_type(where, "an input item", value)
    kind = _kind(value, where)
    prefix, check = _KINDS[kind]
    kept = check(value, where)
    if kind == "item_reference":
        return {"type": kind, **kept}
    return {
        "id": _id(value, where) or new_id(prefix),
        "type": kind,
        "status": kept.pop("status", "completed"),
        **kept,
    }


def _kind(value: dict[str, Any], where: str) -> str:
    kind = value.get("type")
    if kind is None:
        if "role" in value or "content" in value:
            return "message"
        if "id" in value:
            return "item_reference"  # contract §6.1: its type may be null or absent
        raise missing(f"{where}.type")
    if type(kind) is not str:
        raise wrong_type(f"{where}.type", "a string", kind)
    if kind not in _KINDS:
        raise unsupported_value(f"{where}.type", kind, _KINDS)
    return kind


def _id(value: dict[str, Any], where: str) -> str | None:
    given = value.get("id")
    if given is None:
        return None
    if type(given) is not str:
        raise wrong_type(f"{where}.id", "a string", given)
    return given if _USABLE_ID.fullmatch(given) else None


def _image(value: Any, where: str) -> dict[str, Any]:
    part: dict[str, Any] = _IMAGE(value, where)
    if ("image_url" in part) == ("file_id" in part):
        message = (
            f"Invalid '{where}': an 'input_image' needs exactly one of 'image_url' and 'file_id'."
        )
        raise InvalidRequest(message, param=where, code="invalid_value")
    _refuse_file_id(part, where, "Send the image itself in 'image_url', as a URL or a data URL.")
    if not part["image_url"].startswith(("https://", "http://", "data:")):
        message = f"Invalid '{where}.image_url'. Expected a valid URL, but got a value with an invalid format."
        raise InvalidRequest(message, param=f"{where}.image_url", code="invalid_value")
    return {"detail": "auto", **part}


def _file(value: Any, where: str) -> dict[str, Any]:
    part: dict[str, Any] = _FILE(value, where)
    _refuse_file_id(
        part, where, "Send the file itself in 'file_data', or its address in 'file_url'."
    )
    if "file_data" not in part and "file_url" not in part:
        raise missing(f"{where}.file_data")
    if "file_data" in part and "file_url" in part:
        message = (
            f"Invalid '{where}': an 'input_file' needs exactly one of 'file_data' and 'file_url'."
        )
        raise InvalidRequest(message, param=where, code="invalid_value")
    return part


def _refuse_file_id(part: dict[str, Any], where: str, instead: str) -> None:
    if "file_id" in part:
        message = f"'{where}.file_id' is not supported: this server keeps no files. {instead}"
        raise InvalidRequest(message, param=f"{where}.file_id", code="unsupported_parameter")


def _output_text(value: Any, where: str) -> dict[str, Any]:
    return {"annotations": [], **_OUTPUT_TEXT(value, where)}


_IMAGE = record(
    {},
    {
        "image_url": string(expected="an image URL"),
        "file_id": _TEXT,
        "detail": choice("auto", "low", "high", "original"),
    },
)
_FILE = record({}, {"filename": _TEXT, "file_data": _TEXT, "file_url": _TEXT, "file_id": _TEXT})
_OUTPUT_TEXT = record(
    {"text": _TEXT}, {"annotations": array(open_object), "logprobs": array(open_object)}
)

_RESULT_PARTS: dict[str, Check] = {
    "input_text": record({"text": _TEXT}),
    "input_image": _image,
    "input_file": _file,
}
_AUDIO = record({"input_audio": record({"data": _TEXT, "format": choice("mp3", "wav")})})
_INPUT_CONTENT = array(tagged({**_RESULT_PARTS, "input_audio": _AUDIO}))
_OUTPUT_CONTENT = array(
    tagged({"output_text": _output_text, "refusal": record({"refusal": _TEXT})})
)
_RESULT_CONTENT = array(tagged(_RESULT_PARTS))


def _content(value: Any, where: str) -> Any:
    """A string or a list: told apart here, looked into by `_message` as soon as the role is known."""
    if type(value) is not str and type(value) is not list:
        raise wrong_type(where, "a string or an array of content parts", value)
    return value


_MESSAGE = record({"role": choice(*_ROLES), "content": _content}, {"status": _STATUS})
_PHASE = record({}, {"phase": choice("commentary", "final_answer")})


def _message(value: Any, where: str) -> dict[str, Any]:
    message: dict[str, Any] = _MESSAGE(value, where)
    content = message["content"]
    if message["role"] != "assistant":
        plain = {"type": "input_text", "text": content}
        message["content"] = (
            [plain] if type(content) is str else _INPUT_CONTENT(content, f"{where}.content")
        )
        return message
    output_text = {"type": "output_text", "text": content, "annotations": []}
    message["content"] = (
        [output_text] if type(content) is str else _OUTPUT_CONTENT(content, f"{where}.content")
    )
    return {**message, **_PHASE(value, where)}


def _result(value: Any, where: str) -> Any:
    """What a client's tool gave back: a string, or parts."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise wrong_type(where, "a string or an array of content parts", value)
    return _RESULT_CONTENT(value, where)


def _reasoning(value: Any, where: str) -> dict[str, Any]:
    return {"summary": [], **_REASONING(value, where)}


_REASONING = record(
    {},
    {
        "summary": array(tagged({"summary_text": record({"text": _TEXT})})),
        "content": array(tagged({"reasoning_text": record({"text": _TEXT})})),
        "encrypted_content": _TEXT,
        "status": _STATUS,
    },
)


def _server_tool_item(*names: str) -> Check:
    """A hosted tool's item, taken as history: its documented fields as they are, nulls left out."""
    return record({}, {"status": _TEXT, **dict.fromkeys(names, any_json)})


def _schema(value: Any, where: str) -> Any:  # noqa: ARG001 - every JSON is taken
    """What an MCP server calls a schema, as it is; what is none of an object is passed over when tools are offered."""
    return value


_NAME = string(non_empty=True)
_MCP_TOOL = record(
    {"name": _NAME}, {"input_schema": _schema, "description": _TEXT, "annotations": open_object}
)
_MCP_CALL = {"server_label": _TEXT, "name": _NAME, "arguments": _TEXT}
_COUNT = integer(0, 2**31 - 1)
_EXIT_CODE = integer(-(2**31), 2**31 - 1)
_IMAGE_URL = string(pattern=r"(https?://|data:)\S*", expected="an image URL")
_WORDS = array(_TEXT)
_EXECUTION = choice("client", "server")
_COMMANDS = record({"commands": _WORDS}, {"timeout_ms": _COUNT, "max_output_length": _COUNT})
_COMMAND_RESULTS = array(
    record(
        {
            "stdout": _TEXT,
            "stderr": _TEXT,
            "outcome": tagged({"exit": record({"exit_code": _EXIT_CODE}), "timeout": record({})}),
        }
    )
)
_EXEC = tagged(
    {
        "exec": record(
            {"command": _WORDS},
            {"env": open_object, "timeout_ms": _COUNT, "user": _TEXT, "working_directory": _TEXT},
        )
    },
)
_PATCH = tagged(
    {
        **dict.fromkeys(("create_file", "update_file"), record({"path": _TEXT, "diff": _TEXT})),
        "delete_file": record({"path": _TEXT}),
    }
)
_SCREENSHOT = tagged({"computer_screenshot": record({"image_url": _IMAGE_URL})})
_LOCAL_SHELL_OUTPUT = record(
    {"output": _TEXT}, {"call_id": _CALL_ID, "id": _CALL_ID, "status": _STATUS}
)


def _local_shell_output(value: Any, where: str) -> dict[str, Any]:
    """The call it answers stands in `call_id`, or, as the SDK's types have it, in `id`."""
    item = _LOCAL_SHELL_OUTPUT(value, where)
    call_id = item.pop("call_id", None) or item.pop("id", None)
    if call_id is None:
        raise missing(f"{where}.call_id")
    item.pop("id", None)
    return {"call_id": call_id, **item}


_KINDS: dict[str, tuple[str, Check]] = {
    "message": ("msg", _message),
    "function_call": (
        "fc",
        record(
            {"call_id": _CALL_ID, "name": _NAME, "arguments": _TEXT},
            {"namespace": _TEXT, "status": _STATUS},
        ),
    ),
    "function_call_output": (
        "fco",
        record({"call_id": _CALL_ID, "output": _result}, {"status": _STATUS}),
    ),
    "custom_tool_call": (
        "ctc",
        record(
            {"call_id": _CALL_ID, "name": _NAME, "input": _TEXT},
            {"namespace": _TEXT, "status": _STATUS},
        ),
    ),
    "custom_tool_call_output": (
        "ctco",
        record({"call_id": _CALL_ID, "output": _result}, {"status": _STATUS}),
    ),
    "reasoning": ("rs", _reasoning),
    "item_reference": ("", record({"id": _NAME})),
    "web_search_call": ("ws", _server_tool_item("action", "results")),
    "file_search_call": ("fs", _server_tool_item("queries", "results")),
    "code_interpreter_call": ("ci", _server_tool_item("container_id", "code", "outputs")),
    "image_generation_call": (
        "ig",
        _server_tool_item(
            "result", "action", "background", "output_format", "quality", "revised_prompt", "size"
        ),
    ),
    "mcp_list_tools": (
        "mcpl",
        record(
            {"server_label": _TEXT, "tools": array(_MCP_TOOL)}, {"error": _TEXT, "status": _TEXT}
        ),
    ),
    "mcp_call": (
        "mcp",
        record(
            _MCP_CALL,
            {"output": _TEXT, "error": any_json, "approval_request_id": _TEXT, "status": _TEXT},
        ),
    ),
    "mcp_approval_request": ("mcpr", record(_MCP_CALL, {"status": _TEXT})),
    "mcp_approval_response": (
        "mcpa",
        record({"approval_request_id": _TEXT, "approve": boolean}, {"reason": _TEXT}),
    ),
    "computer_call": (
        "cu",
        record(
            {"call_id": _CALL_ID},
            {
                "status": _STATUS,
                **dict.fromkeys(("action", "actions", "pending_safety_checks"), any_json),
            },
        ),
    ),
    "computer_call_output": (
        "cuo",
        record(
            {"call_id": _CALL_ID, "output": _SCREENSHOT},
            {"acknowledged_safety_checks": any_json, "status": _STATUS},
        ),
    ),
    "local_shell_call": (
        "lsh",
        record({"call_id": _CALL_ID, "action": _EXEC}, {"status": _STATUS}),
    ),
    "local_shell_call_output": ("lsho", _local_shell_output),
    "shell_call": (
        "sh",
        record(
            {"call_id": _CALL_ID, "action": _COMMANDS},
            {"environment": open_object, "status": _STATUS},
        ),
    ),
    "shell_call_output": (
        "sho",
        record(
            {"call_id": _CALL_ID, "output": _COMMAND_RESULTS},
            {"max_output_length": _COUNT, "status": _STATUS},
        ),
    ),
    "apply_patch_call": (
        "apc",
        record({"call_id": _CALL_ID, "operation": _PATCH}, {"status": _STATUS}),
    ),
    "apply_patch_call_output": (
        "apco",
        record({"call_id": _CALL_ID, "status": choice("completed", "failed")}, {"output": _TEXT}),
    ),
    "tool_search_call": (
        "tsc",
        record(
            {"arguments": any_json},
            {"call_id": _CALL_ID, "execution": _EXECUTION, "status": _STATUS},
        ),
    ),
    "tool_search_output": (
        "tso",
        record(
            {"tools": item_tools}, {"call_id": _CALL_ID, "execution": _EXECUTION, "status": _STATUS}
        ),
    ),
    "additional_tools": ("at", record({"role": choice("developer"), "tools": item_tools})),
    "compaction": ("cmp", record({"encrypted_content": _NAME}, {"status": _STATUS})),
    "compaction_trigger": ("cmpt", record({})),
    "program": ("prog", _server_tool_item("call_id", "code", "fingerprint")),
    "program_output": ("progo", _server_tool_item("call_id", "result")),
}
"""type -> (prefix of its id, check). Left out, so refused: what would change how the model runs and that we would have to ignore
(configuration_update)."""
