"""Calls that this server runs itself: how the model is offered the tools, and how a call looks from its `added` to its `done`. Pure.

Such a call is said like any other, but its item outlives its turn: `asked` when the turn has ended and all arguments are there, then the
tool runs (worker/tools), then `answered` closes it. In between the item rests in Postgres, so it can be `restored` by another attempt on
another worker: an item's JSON and its output_index are all there is to know about it.
"""

import hashlib
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from models.wire.events import Event, Item, ItemDone
from worker.translation.items.text_items import OpenItem

MAX_FUNCTION_NAME = 64
"""Characters of a function's name that every chat server takes."""

_USABLE_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNUSABLE_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


class OpenServerCall(OpenItem):
    """A call that this server answers. Subclasses say of which kind it is and which events of its own it has.

    `fields` is what its item holds besides `id`, `type` and `status`.
    """

    kind: ClassVar[str]
    """The item's type; `prefix` is its id's."""

    def __init__(self, output_index: int, item_id: str, **fields: Any) -> None:
        super().__init__(output_index, item_id)
        self.fields = fields
        self._arguments = io.StringIO()

    @classmethod
    def from_item(cls, output_index: int, item: Item) -> Self:
        """The open call that was stored as this item, all its arguments said."""
        return cls(
            output_index,
            item["id"],
            **{name: value for name, value in item.items() if name not in ("id", "type", "status")},
        )

    @property
    def arguments(self) -> str:
        """What the upstream sent for arguments so far, as it sent it."""
        return self._arguments.getvalue()

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, **self.fields}

    def push(self, arguments: str) -> list[Event]:
        """A piece of the arguments."""
        self._arguments.write(arguments)
        return []

    def arguments_done(self) -> list[Event]:
        """The turn has ended, the call is said in full; from here on `fields` holds all that running it needs. The item stays open."""
        return []

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:
        """The tool has answered: the item gains `fields` and is done."""
        self.fields = {**self.fields, **fields}
        self.status = "failed" if failed else "completed"
        return [*self.status_event(), ItemDone(self.output_index, self.to_json())]

    def status_event(self) -> list[Event]:
        """The kind's own event about the outcome, which `status` tells: `response.….completed` or `….failed`."""
        return []

    def failure_fields(self, message: str) -> dict[str, Any]:  # noqa: ARG002 - kinds that have a place for it use it
        """The fields that tell a failure which the tool itself did not word: refused, out of time, outcome unknown."""
        return {}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - kinds whose arguments have events use it
        """What closes the arguments of a call that breaks off; nothing where the kind has no events for them."""
        return []

    def open_events(self) -> list[Event]:
        """`added`, and the kind's own `….in_progress`, where it has one."""
        return [self.added()]


OpenCallFactory = Callable[[int, Callable[[str], str]], OpenServerCall]
"""Makes the open call, given its output_index and what makes an id from its prefix."""


@dataclass(frozen=True, slots=True)
class ServerFunction:
    """A function that the model is offered and this server runs."""

    tool: Mapping[str, str]
    """As `tool_choice` names it: `{"type": "mcp", "server_label": …, "name": …}`, `{"type": "web_search"}`."""
    name: str
    """As the tool itself is called; the model may know it by another (`spoken_names`)."""
    open_call: OpenCallFactory
    description: str | None = None
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON schema."""


def model_tool_names(
    functions: Iterable[ServerFunction], client_names: Collection[str]
) -> dict[str, ServerFunction]:
    """The name by which the model calls each function, in order: its own where that is free, else with its server's label before it.

    `taken` are the names of the client's own functions. Names come out the same whenever the same functions are offered.
    """
    offered = list(functions)
    own = [function.name for function in offered]
    names: dict[str, ServerFunction] = {}
    for function in offered:
        is_free = (
            function.name not in client_names
            and own.count(function.name) == 1
            and _USABLE_NAME.fullmatch(function.name)
        )
        name = function.name if is_free else _with_label(function)
        while name in client_names or name in names or (not is_free and name in own):
            name = _with_hash(name, function)
        names[name] = function
    return names


def model_tool_name(item: Item, server_functions: Mapping[str, ServerFunction]) -> str:
    """The name under which a call in the history is told to the model, also if its tool is no longer offered."""
    for name, function in server_functions.items():
        if matches_choice(function.tool, _tool_choice_of(item)):
            return name
    return _UNUSABLE_CHARACTER.sub(
        "_", str(item.get("name") or item["type"].removesuffix("_call"))
    )[:MAX_FUNCTION_NAME]


def matches_choice(tool: Mapping[str, str], choice: Mapping[str, Any]) -> bool:
    """Whether an entry of `tool_choice` means this tool: what it leaves out, it does not ask for."""
    return choice.get("type") == tool["type"] and all(
        choice.get(key, value) == value for key, value in tool.items()
    )


def _tool_choice_of(item: Item) -> dict[str, Any]:
    tool: dict[str, Any] = {key: item[key] for key in ("server_label", "name") if key in item}
    tool["type"] = item["type"].removesuffix("_call")
    return tool


def _with_label(function: ServerFunction) -> str:
    name = f"{function.tool.get('server_label', function.tool['type'])}__{function.name}"
    usable = _UNUSABLE_CHARACTER.sub("_", name)
    return (
        usable
        if usable == name and len(name) <= MAX_FUNCTION_NAME
        else _with_hash(usable, function)
    )


def _with_hash(name: str, function: ServerFunction) -> str:
    digest = hashlib.sha256(
        repr((name, sorted(function.tool.items()), function.name)).encode()
    ).hexdigest()[:8]
    return f"{name[: MAX_FUNCTION_NAME - 9]}_{digest}"
