"""Client tools that a chat upstream gets as functions.

**Built-in tools** that the client runs: shell, patches, tool search, computer. A chat upstream gets
a plain function in the place of each. The arguments that the model writes become the fields of the
client's item. The fields become arguments again when the item comes back in the history.

**Custom tools**, which take free text. A chat upstream sends a function's arguments as JSON. So the
tool is offered as a function with one string argument (worker/translation/tool_catalog.py), and the
string that the model writes is the call's input. While the JSON has exactly the shape
`{"input": "…"}`, each piece is decoded as it arrives. For another shape, the input is read when the
arguments are complete.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.json_input import clean_text, decode_body
from worker.translation.items import computer_actions

CUSTOM_TOOL_ARGUMENT = "input"
"""The name of the only argument of a function that stands for a custom tool."""

_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


class InputUnwrapper:
    """Takes the JSON off one call's input, or off another single string argument.

    Escapes can spell characters that cannot be stored, so decoded text is cleaned here
    (`clean_text`).
    """

    def __init__(self, argument: str = CUSTOM_TOOL_ARGUMENT) -> None:
        """`argument`: its name."""
        self._argument = argument
        self._opening = f'{{"{argument}":"'
        end = len(self._opening)
        self._spaces = (0, 1, end - 2, end - 1)
        """Positions in the opening before which white space is allowed: brace, quote, colon,
        quote."""
        self._matched = 0
        """Characters of the opening that have arrived."""
        self._buffer = ""
        """The start of an escape whose end has not arrived."""
        self._is_other_shape = False
        self._is_closed = False

    def unwrap(self, arguments: str) -> str:
        """The input in the next piece of the arguments; often empty."""
        if self._is_other_shape or self._is_closed:
            return ""
        start = self._match_opening(arguments)
        if self._is_other_shape or self._matched < len(self._opening):
            return ""
        return self._decode(self._buffer + arguments[start:])

    def flush(self, arguments: str) -> str:
        """The rest of the input, from the complete arguments: an unfinished escape, or all of it
        for another shape."""
        if self._matched == len(self._opening) and not self._is_other_shape:
            return clean_text(self._buffer)
        return clean_text(_extract_input(arguments, self._argument))

    def _match_opening(self, arguments: str) -> int:
        """Matches the opening; returns the position after it in `arguments`."""
        for position, character in enumerate(arguments):
            if self._matched == len(self._opening):
                return position
            if character == self._opening[self._matched]:
                self._matched += 1
            elif self._matched not in self._spaces or not character.isspace():
                self._is_other_shape = True
                return position
        return len(arguments)

    def _decode(self, text: str) -> str:
        """Decodes the string in `text`, up to its closing quote or to an escape whose end has
        not arrived."""
        decoded: list[str] = []
        at = 0
        self._buffer = ""
        while (special := _SPECIAL.search(text, at)) is not None:
            decoded.append(text[at : special.start()])
            at = special.start()
            if special[0] == '"':
                self._is_closed = True
                return "".join(decoded)
            escape = _decode_escape(text[at : at + 12])
            if escape is None:
                self._buffer = text[at:]
                return "".join(decoded)
            decoded.append(escape[0])
            at += escape[1]
        return "".join((*decoded, text[at:]))


def _decode_escape(text: str) -> tuple[str, int] | None:
    """An escape's character and its length; None while its end is missing. An escape that JSON
    does not know stays as it is."""
    if len(text) < 2:
        return None
    if text[1] != "u":
        return _ESCAPES.get(text[1], text[:2]), 2
    code = _UNICODE_ESCAPE.match(text)
    if code is None:
        return None if len(text) < 6 and re.fullmatch(r"[0-9a-fA-F]*", text[2:]) else (text[:2], 2)
    first = int(code[1], 16)
    if not 0xD800 <= first < 0xDC00:
        return clean_text(chr(first)), 6
    if len(text) < 12 and "\\u".startswith(text[6:8]) and re.fullmatch(r"[0-9a-fA-F]*", text[8:]):
        return None
    low = _UNICODE_ESCAPE.match(text, 6)
    if low is None or not 0xDC00 <= (second := int(low[1], 16)) < 0xE000:
        return "\ufffd", 6
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12


def _extract_input(arguments: str, name: str) -> str:
    """The input in arguments of any shape: the string with this name, or the only string, else
    the arguments themselves."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments if arguments.strip() else ""
    if isinstance(parsed, str):
        return parsed
    if isinstance(parsed, dict):
        named = parsed.get(name, next(iter(parsed.values()), "") if len(parsed) < 2 else None)
        if isinstance(named, str):
            return named
    return arguments


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BuiltInTool:
    """A built-in tool and the function that stands for it."""

    name: str
    """The function's name."""
    description: str
    parameters: Json
    to_fields: Callable[[Json], Json | None]
    """The arguments -> the item's fields; None if they are not valid."""
    to_arguments: Callable[[Item], Any]
    """The item -> the arguments."""


def parse_arguments(item_type: str, arguments: str) -> Json | None:
    """The fields of an item of this type, from the arguments that a model wrote; None if they
    are not valid."""
    try:
        parsed = decode_body((arguments.strip() or "{}").encode())
    except InvalidRequest:
        return None
    return BUILT_IN_TOOLS[item_type].to_fields(parsed) if isinstance(parsed, dict) else None


def _is_string_list(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(entry, str) for entry in value)
    )


def _integers(arguments: Json, *names: str) -> Json:
    """Those of these arguments that are valid limits. An invalid limit counts as not set."""
    return {
        name: arguments[name]
        for name in names
        if type(arguments.get(name)) is int and 0 <= arguments[name] < 2**31
    }


def _strings(arguments: Json, *names: str) -> Json:
    return {name: arguments[name] for name in names if isinstance(arguments.get(name), str)}


def _shell_fields(arguments: Json) -> Json | None:
    commands = (
        [arguments["commands"]]
        if isinstance(arguments.get("commands"), str)
        else arguments.get("commands")
    )
    if not _is_string_list(commands):
        return None
    return {
        "action": {"commands": commands, **_integers(arguments, "timeout_ms", "max_output_length")}
    }


def _local_shell_fields(arguments: Json) -> Json | None:
    env = arguments.get("env") or {}
    if (
        not _is_string_list(arguments.get("command"))
        or not isinstance(env, dict)
        or not all(isinstance(value, str) for value in env.values())
    ):
        return None
    options = {
        **_integers(arguments, "timeout_ms"),
        **_strings(arguments, "user", "working_directory"),
    }
    return {"action": {"type": "exec", "command": arguments["command"], "env": env, **options}}


def _patch_fields(arguments: Json) -> Json | None:
    nested = arguments.get("operation")
    fields = nested if isinstance(nested, dict) else arguments
    names = ("type", "path") if fields.get("type") == "delete_file" else ("type", "path", "diff")
    operation = _strings(fields, *names)
    is_valid = (
        len(operation) == len(names)
        and operation["type"] in _PATCH_OPERATIONS
        and operation["path"]
    )
    return {"operation": operation} if is_valid else None


def _tool_search_fields(arguments: Json) -> Json:
    return {"execution": "client", "arguments": arguments}


def _object_schema(properties: Mapping[str, Json], *required: str) -> Json:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


_PATCH_OPERATIONS = ("create_file", "update_file", "delete_file")
_STRING_LIST: Json = {"type": "array", "items": {"type": "string"}}
_TIMEOUT: Json = {
    "type": "integer",
    "description": "Milliseconds after which a command is stopped.",
}

BUILT_IN_TOOLS: dict[str, BuiltInTool] = {
    "shell_call": BuiltInTool(
        name="shell",
        description=(
            "Runs shell commands on the user's machine. "
            "The output contains each command's standard output, standard error and outcome."
        ),
        parameters=_object_schema(
            {
                "commands": {
                    **_STRING_LIST,
                    "description": "Command lines, run by the shell one after the other.",
                },
                "timeout_ms": _TIMEOUT,
                "max_output_length": {
                    "type": "integer",
                    "description": "The maximum number of output characters for each command.",
                },
            },
            "commands",
        ),
        to_fields=_shell_fields,
        to_arguments=lambda item: item["action"],
    ),
    "local_shell_call": BuiltInTool(
        name="local_shell",
        description=(
            "Runs a program on the user's machine, without a shell in between. "
            "The output contains what the program printed."
        ),
        parameters=_object_schema(
            {
                "command": {
                    **_STRING_LIST,
                    "description": (
                        'The program and its arguments, such as ["bash", "-lc", "ls | wc -l"].'
                    ),
                },
                "working_directory": {"type": "string"},
                "timeout_ms": _TIMEOUT,
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "user": {"type": "string", "description": "The user to run it as."},
            },
            "command",
        ),
        to_fields=_local_shell_fields,
        to_arguments=lambda item: {
            name: value for name, value in item["action"].items() if name != "type" and value != {}
        },
    ),
    "apply_patch_call": BuiltInTool(
        name="apply_patch",
        description=(
            "Creates, changes or deletes one file on the user's machine. "
            "The output says whether the patch was applied."
        ),
        parameters=_object_schema(
            {
                "type": {"type": "string", "enum": list(_PATCH_OPERATIONS)},
                "path": {
                    "type": "string",
                    "description": "The file, relative to the root of the workspace.",
                },
                "diff": {
                    "type": "string",
                    "description": (
                        "Not for delete_file. To create: every line of the file, each with '+' "
                        "before it. To update: hunks; each begins with a line '@@', optionally "
                        "followed by the class or function it is in, then lines with ' ' "
                        "(unchanged), '-' (to remove) or '+' (to add) before them."
                    ),
                },
            },
            "type",
            "path",
        ),
        to_fields=_patch_fields,
        to_arguments=lambda item: item["operation"],
    ),
    "tool_search_call": BuiltInTool(
        name="tool_search",
        description="Searches for more tools. Tools that it returns can be called from then on.",
        parameters=_object_schema(
            {"query": {"type": "string", "description": "What the tool should be able to do."}},
            "query",
        ),
        to_fields=_tool_search_fields,
        to_arguments=lambda item: item["arguments"],
    ),
    "computer_call": BuiltInTool(
        name="computer",
        description=computer_actions.DESCRIPTION,
        parameters=computer_actions.BATCH_SCHEMA,
        to_fields=computer_actions.computer_fields,
        to_arguments=computer_actions.computer_arguments,
    ),
}
"""type of a call's item -> the tool."""
