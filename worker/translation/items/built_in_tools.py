"""Tools that OpenAI's models know by heart and that the client runs: shell, patches, the search for tools (contract §6).

A chat upstream is offered a plain function in the place of each; what the model writes as its arguments becomes the fields of the item
that the client gets, and the item's fields become arguments again when it comes back in the history.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.json_input import decode_body

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One such tool."""

    name: str
    """Of the function that stands for it."""
    description: str
    parameters: Json
    read: Callable[[Json], Json | None]
    """The arguments -> the item's fields; None when they do not fit."""
    write: Callable[[Item], Any]
    """The item -> the arguments."""


def fields_of(item: str, arguments: str) -> Json | None:
    """The fields that an item of this type gets from the arguments a model wrote; None when no such item can be made of them."""
    try:
        found = decode_body((arguments.strip() or "{}").encode())
    except InvalidRequest:
        return None
    return BUILT_IN[item].read(found) if isinstance(found, dict) else None


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _whole_numbers(found: Json, *names: str) -> Json:
    """Those of the limits that are usable; a model that makes up another kind of limit has set none."""
    return {
        name: found[name]
        for name in names
        if type(found.get(name)) is int and 0 <= found[name] < 2**31
    }


def _texts(found: Json, *names: str) -> Json:
    return {name: found[name] for name in names if isinstance(found.get(name), str)}


def _read_shell(found: Json) -> Json | None:
    commands = (
        [found["commands"]] if isinstance(found.get("commands"), str) else found.get("commands")
    )
    if not _is_words(commands):
        return None
    return {
        "action": {"commands": commands, **_whole_numbers(found, "timeout_ms", "max_output_length")}
    }


def _read_local_shell(found: Json) -> Json | None:
    env = found.get("env") or {}
    if (
        not _is_words(found.get("command"))
        or not isinstance(env, dict)
        or not all(isinstance(value, str) for value in env.values())
    ):
        return None
    more = {**_whole_numbers(found, "timeout_ms"), **_texts(found, "user", "working_directory")}
    return {"action": {"type": "exec", "command": found["command"], "env": env, **more}}


def _read_patch(found: Json) -> Json | None:
    told = found["operation"] if isinstance(found.get("operation"), dict) else found
    names = ("type", "path") if told.get("type") == "delete_file" else ("type", "path", "diff")
    operation = _texts(told, *names)
    usable = len(operation) == len(names) and operation["type"] in _PATCHES and operation["path"]
    return {"operation": operation} if usable else None


def _read_search(found: Json) -> Json:
    return {"execution": "client", "arguments": found}


def _function(properties: Mapping[str, Json], *required: str) -> Json:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


_PATCHES = ("create_file", "update_file", "delete_file")
_WORDS: Json = {"type": "array", "items": {"type": "string"}}
_TIMEOUT: Json = {
    "type": "integer",
    "description": "Milliseconds after which a command is stopped.",
}

BUILT_IN: dict[str, BuiltIn] = {
    "shell_call": BuiltIn(
        name="shell",
        description="Runs shell commands on the user's machine. The answer holds each command's standard output, error and outcome.",
        parameters=_function(
            {
                "commands": {
                    **_WORDS,
                    "description": "Command lines, run by the shell one after the other.",
                },
                "timeout_ms": _TIMEOUT,
                "max_output_length": {
                    "type": "integer",
                    "description": "The most characters of output to give back for each command.",
                },
            },
            "commands",
        ),
        read=_read_shell,
        write=lambda item: item["action"],
    ),
    "local_shell_call": BuiltIn(
        name="local_shell",
        description="Runs a program on the user's machine, without a shell in between. The answer holds its output.",
        parameters=_function(
            {
                "command": {
                    **_WORDS,
                    "description": 'The program and its arguments, such as ["bash", "-lc", "ls | wc -l"].',
                },
                "working_directory": {"type": "string"},
                "timeout_ms": _TIMEOUT,
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "user": {"type": "string", "description": "The user to run it as."},
            },
            "command",
        ),
        read=_read_local_shell,
        write=lambda item: {
            name: value for name, value in item["action"].items() if name != "type" and value != {}
        },
    ),
    "apply_patch_call": BuiltIn(
        name="apply_patch",
        description="Creates, changes or deletes one file on the user's machine. The answer says whether the patch could be applied.",
        parameters=_function(
            {
                "type": {"type": "string", "enum": list(_PATCHES)},
                "path": {
                    "type": "string",
                    "description": "The file, relative to the root of the workspace.",
                },
                "diff": {
                    "type": "string",
                    "description": "Not for delete_file. To create: every line of the file, each with '+' before it. To update: hunks; "
                    "each begins with a line '@@', optionally followed by the class or function it is in, then lines with ' ' (as it is), "
                    "'-' (to remove) or '+' (to add) before them.",
                },
            },
            "type",
            "path",
        ),
        read=_read_patch,
        write=lambda item: item["operation"],
    ),
    "tool_search_call": BuiltIn(
        name="tool_search",
        description="Searches for further tools. Those that are found can be called from then on.",
        parameters=_function(
            {"query": {"type": "string", "description": "What the tool should be able to do."}},
            "query",
        ),
        read=_read_search,
        write=lambda item: item["arguments"],
    ),
    "computer_call": BuiltIn(
        name="computer",
        description="",
        parameters={},
        read=lambda _: None,
        write=lambda item: {name: item[name] for name in ("action", "actions") if name in item},
    ),
}
"""type of a call's item -> the tool. Computers are only remembered: no upstream is offered one."""
