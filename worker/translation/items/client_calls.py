"""The open items of calls that the client carries out: functions, custom tools, built-in tools."""

import io
import json
import re
from collections.abc import Mapping
from typing import Any

from models.wire.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    Item,
)
from models.wire.item_types import ID_PREFIXES
from models.wire.replay import command_events
from models.wire.tools import CallTarget
from worker.translation.items.client_tools import InputUnwrapper, parse_arguments
from worker.translation.items.open_item import OpenItem, OpenToolCall, is_cut_off

_OBJECT_START = re.compile(r'\s*\{\s*("|$)')


class OpenClientCall(OpenToolCall):
    """A call for the client.

    It is made when its name is known, so `added` carries the complete name and call_id.
    """

    def __init__(self, output_index: int, item_id: str, call_id: str, target: CallTarget) -> None:
        super().__init__(output_index, item_id)
        self.call_id = call_id
        self.target = target

    @property
    def known_id(self) -> str:
        return self.call_id

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, "call_id": self.call_id}


class OpenNamedCall(OpenClientCall):
    """A call of one of the client's own tools, which have a name and sometimes a namespace."""

    def to_json(self) -> Item:
        named = {"name": self.target.name}
        if self.target.namespace is not None:
            named["namespace"] = self.target.namespace
        return {**super().to_json(), **named}


class OpenFunctionCall(OpenNamedCall):
    """A call of a function. The client parses its arguments."""

    kind = "function_call"
    prefix = ID_PREFIXES[kind]

    @property
    def is_cut_off(self) -> bool:
        return is_cut_off(self.arguments)

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return [ArgumentsDelta(self.id, self.output_index, arguments)]

    def to_json(self) -> Item:
        return {**super().to_json(), "arguments": self.arguments}

    def closing_events(self, status: str) -> list[Event]:
        events = self.fill_empty_arguments() if status == "completed" else []
        return [
            *events,
            ArgumentsDone(self.id, self.output_index, self.target.name, self.arguments),
        ]


class OpenCustomCall(OpenNamedCall):
    """A call of a custom tool: for a chat upstream a function with one string argument, for the
    client that string itself.
    """

    kind = "custom_tool_call"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, call_id: str, target: CallTarget) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._unwrapper = InputUnwrapper()
        self._input = io.StringIO()

    @property
    def is_cut_off(self) -> bool:
        """Free text in the place of the arguments may begin with a brace, too."""
        arguments = self.arguments
        return _OBJECT_START.match(arguments) is not None and is_cut_off(arguments)

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return self._append_input(self._unwrapper.unwrap(arguments))

    def to_json(self) -> Item:
        return {**super().to_json(), "input": self._input.getvalue()}

    def closing_events(self, status: str) -> list[Event]:
        """Sends the rest of the input.

        Arguments of an unexpected shape are only read when they are complete; in an incomplete call
        they give no input.
        """
        events = (
            self._append_input(self._unwrapper.flush(self.arguments))
            if status == "completed"
            else []
        )
        return [*events, CustomInputDone(self.id, self.output_index, self._input.getvalue())]

    def _append_input(self, text: str) -> list[Event]:
        self._input.write(text)
        return [CustomInputDelta(self.id, self.output_index, text)] if text else []


class OpenBuiltInCall(OpenClientCall):
    """A call of a tool whose arguments become fields of the item
    (worker/translation/items/client_tools.py).

    It is opened when its arguments are complete and valid: an item with half a command is no valid
    item of its type.
    """

    @property
    def fields(self) -> dict[str, Any]:
        """The item's fields, read from the arguments."""
        return parse_arguments(self.kind, self.arguments) or {}

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return []

    def to_json(self) -> Item:
        return {**super().to_json(), **(self.initial_fields() if self.is_open else self.fields)}

    def initial_fields(self) -> dict[str, Any]:
        """The fields of the open item, without those that its own events send later."""
        return self.fields


class OpenShellCall(OpenBuiltInCall):
    """`shell_call`: each of its commands has its own events."""

    kind = "shell_call"
    prefix = ID_PREFIXES[kind]

    def initial_fields(self) -> dict[str, Any]:
        return {"action": without_commands(self.fields["action"])}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - the arguments are complete
        return list(command_events(self.output_index, self.fields["action"]["commands"]))


class OpenLocalShellCall(OpenBuiltInCall):
    """`local_shell_call`, the older kind: one program and a list of its arguments."""

    kind = "local_shell_call"
    prefix = ID_PREFIXES[kind]


class OpenPatchCall(OpenBuiltInCall):
    """`apply_patch_call`: a change of one file."""

    kind = "apply_patch_call"
    prefix = ID_PREFIXES[kind]


class OpenToolSearchCall(OpenBuiltInCall):
    """`tool_search_call`: the client searches for tools and sends the result as
    `tool_search_output`.
    """

    kind = "tool_search_call"
    prefix = ID_PREFIXES[kind]


class OpenComputerCall(OpenBuiltInCall):
    """`computer_call`: actions with mouse and keyboard, or one for a client that takes only one. Of
    several actions such a client gets the first: its screenshot shows the model what was done.
    """

    kind = "computer_call"
    prefix = ID_PREFIXES[kind]

    @property
    def fields(self) -> dict[str, Any]:
        fields = super().fields
        if self.target.takes_one_action and "actions" in fields:
            fields["action"] = fields.pop("actions")[0]
        return fields


CALL_KINDS: dict[str, type[OpenClientCall]] = {
    kind.kind: kind
    for kind in (
        OpenFunctionCall,
        OpenCustomCall,
        OpenShellCall,
        OpenLocalShellCall,
        OpenPatchCall,
        OpenToolSearchCall,
        OpenComputerCall,
    )
}
"""type of a call's item -> its class."""


class CallOutput(OpenItem):
    """This server's output for a call that neither server nor client can carry out.

    It is complete at once.
    """

    prefix = ID_PREFIXES["function_call_output"]

    def __init__(self, output_index: int, item_id: str, call_id: str, output: str) -> None:
        super().__init__(output_index, item_id)
        self._call_id = call_id
        self._output = output

    def to_json(self) -> Item:
        return {
            "id": self.id,
            "type": "function_call_output",
            "status": self.status,
            "call_id": self._call_id,
            "output": self._output,
        }


def without_commands(action: Mapping[str, Any]) -> dict[str, Any]:
    """The action of an open shell call: its commands are sent by their own events."""
    return {**action, "commands": []}


def is_json_object(arguments: str) -> bool:
    """Whether the arguments are a complete JSON object; truncated ones are not."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
