"""The items of MCP: a listing of a server's tools, a call of one, and the request to approve a
call.
"""

from typing import Any

from models.wire.events import (
    Event,
    Item,
    ItemDone,
    ListToolsCompleted,
    ListToolsFailed,
    ListToolsInProgress,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
)
from models.wire.item_types import ID_PREFIXES
from worker.translation.items.json_end import is_cut_off
from worker.translation.items.server_calls import OpenServerCall


class OpenListTools(OpenServerCall):
    """A listing: `server_label`, `tools`. This server starts it, not the model."""

    kind = "mcp_list_tools"
    prefix = ID_PREFIXES[kind]
    completed_event = ListToolsCompleted
    failed_event = ListToolsFailed

    def to_json(self) -> Item:
        return {"tools": [], **super().to_json()}

    def open_events(self) -> list[Event]:
        return [self.added(), ListToolsInProgress(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {"error": message}


class OpenMcpCall(OpenServerCall):
    """A call: `server_label`, `name`, and `approval_request_id` where it was approved.

    A call that is made with a field `arguments` has all of them from the start.
    """

    kind = "mcp_call"
    prefix = ID_PREFIXES[kind]
    completed_event = McpCallCompleted
    failed_event = McpCallFailed

    def to_json(self) -> Item:
        item = super().to_json()
        return item if "arguments" in item else {**item, "arguments": self.arguments}

    def open_events(self) -> list[Event]:
        arguments = self.fields.pop("arguments", None)
        events = [self.added(), McpCallInProgress(self.id, self.output_index)]
        if arguments is None:
            return events
        return [*events, *self.push(arguments), *self.arguments_done()]

    def push(self, arguments: str) -> list[Event]:
        return [*super().push(arguments), McpArgumentsDelta(self.id, self.output_index, arguments)]

    def arguments_done(self) -> list[Event]:
        if "arguments" in self.fields:
            return []
        events = self.fill_empty_arguments()
        self.fields = {**self.fields, "arguments": self.arguments}
        return [*events, McpArgumentsDone(self.id, self.output_index, self.arguments)]

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - the same for every status
        return (
            []
            if "arguments" in self.fields
            else [McpArgumentsDone(self.id, self.output_index, self.arguments)]
        )

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {
            "error": {
                "type": "mcp_tool_execution_error",
                "content": [{"type": "text", "text": message}],
            }
        }


class OpenApprovalRequest(OpenServerCall):
    """The request to approve a call: `server_label`, `name`, `arguments`.

    It is completed as soon as its arguments are complete.
    """

    kind = "mcp_approval_request"
    prefix = ID_PREFIXES[kind]

    @property
    def is_cut_off(self) -> bool:
        return is_cut_off(self.arguments)

    def to_json(self) -> Item:
        return {**super().to_json(), "arguments": self.arguments}

    def arguments_done(self) -> list[Event]:
        self.fill_empty_arguments()
        self.status = "completed"
        return [ItemDone(self.output_index, self.to_json())]
