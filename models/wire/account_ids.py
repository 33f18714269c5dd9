"""The ids in requests that name objects of an upstream's account: containers, files, vector stores.

All projects of a deployment use the same account, so such an id may name what another project has
made. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.ids import parse_file_id
from models.wire.events import Item
from models.wire.items import file_places
from models.wire.tools import is_native_only, is_own_code_tool

_CONTAINER_ITEMS = frozenset(("code_interpreter_call", "shell_call", "shell_call_output"))
_OBJECT_FIELDS = frozenset(
    (
        *("file_id", "file_ids", "vector_store_id", "vector_store_ids"),
        *("container", "container_id", "skill_id"),
    )
)
_SELF_DESCRIBING = frozenset(("filters", "parameters"))
"""Fields of tools that hold values of the client's own data."""


@dataclass(frozen=True, slots=True)
class AccountId:
    """An id and where it is."""

    param: str
    id: str
    is_container: bool = False
    """It may be one that an earlier output of the project has named."""


def item_account_ids(items: list[Item], where: str = "input") -> Iterator[AccountId]:
    """The ids in checked items with which an upstream looks something up."""
    for index, item in enumerate(items):
        kind, place = item["type"], f"{where}[{index}]"
        if kind in _CONTAINER_ITEMS:
            if container := _text(item.get("container_id")):
                yield AccountId(f"{place}.container_id", container, is_container=True)
            environment = item.get("environment")
            if type(environment) is dict and (found := _text(environment.get("container_id"))):
                yield AccountId(f"{place}.environment.container_id", found, is_container=True)
        elif kind == "image_generation_call" and not item.get("result"):
            # Without its content the upstream looks the image up by the id.
            yield AccountId(f"{place}.id", item["id"])
    for file in file_places(items):
        if file.name == "file_id" and parse_file_id(file.value) is None:
            yield AccountId(file.path(file.item, where), file.value)


def tool_account_ids(tools: list[dict[str, Any]]) -> Iterator[AccountId]:
    """The ids in the tools that an upstream runs."""
    for index, tool in enumerate(tools):
        if (is_native_only(tool) or tool["type"] == "shell") and not is_own_code_tool(tool):
            yield from _nested(tool, f"tools[{index}]")


def chat_account_ids(messages: Any) -> Iterator[AccountId]:
    """The ids of files and of recordings in the messages of a chat completion."""
    for index, message in enumerate(messages if type(messages) is list else ()):
        if type(message) is not dict:
            continue
        place = f"messages[{index}]"
        audio, content = message.get("audio"), message.get("content")
        if type(audio) is dict and (found := _text(audio.get("id"))):
            yield AccountId(f"{place}.audio.id", found)
        yield from _nested(content, f"{place}.content") if type(content) is list else ()


def parameter_account_ids(parameters: Mapping[str, Any]) -> Iterator[AccountId]:
    """The ids in parameters that an upstream gets unchecked, because its setting `passthrough`
    lists them: only in fields whose names leave no doubt."""
    for found in _nested(dict(parameters), ""):
        if found.param.rpartition(".")[2] in _OBJECT_FIELDS:
            yield found


def unknown_account_ids(fields: Mapping[str, Any]) -> Iterator[AccountId]:
    """The ids in fields that this server does not know, by their places: as in
    `parameter_account_ids`."""
    for place, value in fields.items():
        parent, _, name = place.rpartition(".")
        for found in _nested({name: value}, parent):
            if found.param.rpartition(".")[2] in _OBJECT_FIELDS:
                yield found


def body_account_ids(body: dict[str, Any]) -> Iterator[AccountId]:
    """The ids in any other body that an upstream gets unchecked."""
    yield from _nested(body, "")
    voice = body.get("voice")
    if type(voice) is dict and (found := _text(voice.get("id"))):
        yield AccountId("voice.id", found)


def _nested(value: Any, where: str) -> Iterator[AccountId]:
    if type(value) is dict:
        for name, inner in value.items():
            if name in _SELF_DESCRIBING:
                continue
            place, lower = f"{where}.{name}" if where else name, name.lower()
            if type(inner) is str:
                if lower == "container" or lower.endswith("_id"):
                    is_container = lower in ("container", "container_id")
                    yield AccountId(place, inner, is_container=is_container)
            elif lower.endswith("_ids"):
                yield from (AccountId(place, each) for each in _texts(inner))
            else:
                yield from _nested(inner, place)
    elif type(value) is list:
        for index, inner in enumerate(value):
            yield from _nested(inner, f"{where}[{index}]")


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _texts(value: Any) -> Iterator[str]:
    for each in value if type(value) is list else [value]:
        if type(each) is str:
            yield each
