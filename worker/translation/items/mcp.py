"""The items of MCP: a listing of a server's tools, a call of one, and the request to approve a call (contract §4.3, §4.4). Pure."""

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
from worker.translation.items.server_calls import OpenServerCall


class OpenListTools(OpenServerCall):
    """A listing: `server_label`, `tools`; no model asks for it."""

    prefix = "mcpl"
    kind = "mcp_list_tools"

    def to_json(self) -> Item:
        return {"tools": [], **super().to_json()}

    def open_events(self) -> list[Event]:
        return [self.added(), ListToolsInProgress(self.id, self.output_index)]

    def status_event(self) -> list[Event]:
        kind = ListToolsCompleted if self.status == "completed" else ListToolsFailed
        return [kind(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {"error": message}


class OpenMcpCall(OpenServerCall):
    """A call: `server_label`, `name`, and `approval_request_id` where it was approved. One that is made with `arguments` has them all."""

    prefix = "mcp"
    kind = "mcp_call"

    def to_json(self) -> Item:
        item = super().to_json()
        return item if "arguments" in item else {**item, "arguments": self.arguments}

    def open_events(self) -> list[Event]:
        said = self.fields.pop("arguments", None)
        events = [self.added(), McpCallInProgress(self.id, self.output_index)]
        return events if said is None else [*events, *self.push(said), *self.arguments_done()]

    def push(self, arguments: str) -> list[Event]:
        return [*super().push(arguments), McpArgumentsDelta(self.id, self.output_index, arguments)]

    def arguments_done(self) -> list[Event]:
        """Without arguments the model means none: `{}`, as a delta too, so that clients can parse it and the sum still holds."""
        if "arguments" in self.fields:
            return []
        events: list[Event] = [] if self.arguments.strip() else self.push("{}")
        self.fields = {**self.fields, "arguments": self.arguments}
        return [*events, McpArgumentsDone(self.id, self.output_index, self.arguments)]

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said is said, however the call ends
        return (
            []
            if "arguments" in self.fields
            else [McpArgumentsDone(self.id, self.output_index, self.arguments)]
        )

    def status_event(self) -> list[Event]:
        kind = McpCallCompleted if self.status == "completed" else McpCallFailed
        return [kind(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {
            "error": {
                "type": "mcp_tool_execution_error",
                "content": [{"type": "text", "text": message}],
            }
        }


class OpenApprovalRequest(OpenServerCall):
    """The question whether a call may be made: `server_label`, `name`, `arguments`. It is complete, and done, when it was said in full."""

    prefix = "mcpr"
    kind = "mcp_approval_request"

    def to_json(self) -> Item:
        return {**super().to_json(), "arguments": self.arguments}

    def arguments_done(self) -> list[Event]:
        if not self.arguments.strip():
            self.push("{}")
        self.status = "completed"
        return [ItemDone(self.output_index, self.to_json())]
