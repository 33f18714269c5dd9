"""The open items of calls that this server carries out itself: MCP, searches of the web and of
files, code; and of pictures, which the upstream has made.

The model makes such a call like any other, but the item stays open after the model's turn:
`arguments_done` when the turn has ended and the arguments are complete, then the tool runs
(worker/tools), then `result` closes the item. In between it is stored in Postgres, so another
attempt on another worker can restore it (`restore_call`): an item's JSON and its output_index are
its whole state.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from models.errors import InvalidRequest
from models.wire.events import (
    CodeCompleted,
    CodeDelta,
    CodeDone,
    CodeInProgress,
    CodeInterpreting,
    Event,
    FileSearchCompleted,
    FileSearching,
    FileSearchInProgress,
    ImageCompleted,
    ImageGenerating,
    ImageInProgress,
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
    SearchCompleted,
    Searching,
    SearchInProgress,
)
from models.wire.item_types import ID_PREFIXES
from models.wire.json_input import clean_text, decode_body
from models.wire.replay import command_events, shell_output_events
from worker.translation.items.client_tools import InputUnwrapper, parse_arguments
from worker.translation.items.open_item import OpenItem, OpenToolCall, is_cut_off


class OpenServerCall(OpenToolCall):
    """A call that this server answers. Subclasses name its kind and add the events of that kind.

    `fields` are the item's fields besides `id`, `type` and `status`.
    """

    completed_event: ClassVar[type[Event] | None] = None
    """The kind's event `response.….completed`, where it has one."""
    failed_event: ClassVar[type[Event] | None] = None
    """The kind's event `response.….failed`, where it has one."""

    def __init__(self, output_index: int, item_id: str, **fields: Any) -> None:
        super().__init__(output_index, item_id)
        self.fields = fields

    @classmethod
    def from_item(cls, output_index: int, item: Item) -> Self:
        """The open call that was stored as this item; its arguments are complete."""
        return cls(
            output_index,
            item["id"],
            **{name: value for name, value in item.items() if name not in ("id", "type", "status")},
        )

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, **self.fields}

    def push(self, arguments: str) -> list[Event]:
        """Appends a piece of the arguments. A kind whose arguments have events returns them."""
        self._arguments.write(arguments)
        return []

    def arguments_done(self) -> list[Event]:
        """The turn has ended and the arguments are complete.

        `fields` now holds all that running the call needs; the item stays open.
        """
        return []

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:
        """Adds the tool's result to the item and closes it."""
        self.fields = {**self.fields, **fields}
        self.status = "failed" if failed else "completed"
        return [*self.status_events(), ItemDone(self.output_index, self.to_json())]

    def status_events(self) -> list[Event]:
        """The kind's own event about the outcome, by `status`."""
        kind = self.completed_event if self.status == "completed" else self.failed_event
        return [] if kind is None else [kind(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:  # noqa: ARG002 - for kinds with such a field
        """The fields of a failure that the tool itself did not report: refused, out of time,
        outcome unknown.
        """
        return {}


OpenCallFactory = Callable[[int, Callable[[str], str]], OpenServerCall]
"""Makes an open call from its output_index and a function that makes an id from a prefix."""


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


class OpenWebSearchCall(OpenServerCall):
    """A search.

    Its `action` gets the query when the arguments are complete; the arguments themselves have no
    events.
    """

    kind = "web_search_call"
    prefix = ID_PREFIXES[kind]
    completed_event = SearchCompleted

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"action": {"type": "search"}, **fields})

    def open_events(self) -> list[Event]:
        return [self.added(), SearchInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        query = _query_of(self.arguments)
        if query:
            self.fields = {"action": {"type": "search", "query": query, "queries": [query]}}
        return [Searching(self.id, self.output_index)]


def _query_of(arguments: str) -> str:
    """The query in a model's arguments; empty if there is none."""
    try:
        parsed = decode_body(arguments.encode())
    except InvalidRequest:
        return ""
    query = parsed.get("query") if isinstance(parsed, dict) else None
    return query.strip() if isinstance(query, str) else ""


class OpenToolSearch(OpenServerCall):
    """A search for tools that this server runs. Its `arguments` are an object with the `query`."""

    kind = "tool_search_call"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        base: dict[str, Any] = {"execution": "server", "arguments": {}}
        super().__init__(output_index, item_id, **{**base, **fields})

    def arguments_done(self) -> list[Event]:
        queries = queries_of(self.arguments)
        self.fields = {**self.fields, "arguments": {"query": " ".join(queries)}}
        return []

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:
        """As of any call. The item's type has no status `failed`."""
        events = super().result(fields, failed=failed)
        if not failed:
            return events
        self.status = "incomplete"
        return [ItemDone(self.output_index, self.to_json())]


class OpenFoundTools(OpenServerCall):
    """`tool_search_output`: what the search before it has found, in `tools`."""

    kind = "tool_search_output"
    prefix = ID_PREFIXES[kind]

    def to_json(self) -> Item:
        return {"execution": "server", **super().to_json()}


MAX_QUERIES = 5
"""Queries of one call. Further ones are dropped."""
_MAX_QUERY = 1000
"""Characters of a query."""
_QUERY_NAMES = ("queries", "query", "q", "search_query", "input", "text")
"""Names under which models send their queries, whatever the description of the function says."""


class OpenFileSearchCall(OpenServerCall):
    """A search.

    It gets its `queries` when the arguments are complete; the arguments themselves have no events.
    Its `results` are stored in it, and shown only on request (models/wire/response.py).
    """

    kind = "file_search_call"
    prefix = ID_PREFIXES[kind]
    completed_event = FileSearchCompleted

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"queries": [], **fields})

    def open_events(self) -> list[Event]:
        return [self.added(), FileSearchInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        self.fields = {**self.fields, "queries": queries_of(self.arguments)}
        return [FileSearching(self.id, self.output_index)]


def queries_of(arguments: str) -> list[str]:
    """The queries in a model's arguments; none if there are none.

    Weak models write one query as a text, under another name, as JSON in a string, or without any
    JSON.
    """
    decoded = _decoded_query(arguments)
    if isinstance(decoded, str) and decoded.lstrip().startswith(("[", "{")):
        return []  # JSON that broke off
    queries = (query[:_MAX_QUERY].strip() for query in _texts(decoded))
    return list(dict.fromkeys(query for query in queries if query))[:MAX_QUERIES]


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts in a value that should be queries."""
    if depth > 3:
        return
    if isinstance(value, str):
        inner = _decoded_query(value) if value.lstrip().startswith(("[", "{")) else value
        if inner == value:
            yield value
        else:
            yield from _texts(inner, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)
    elif isinstance(value, dict):
        name = next((name for name in _QUERY_NAMES if value.get(name)), None)
        texts = [each for each in value.values() if isinstance(each, str)]
        yield from _texts(value[name] if name is not None else texts[:1], depth + 1)


def _decoded_query(text: str) -> Any:
    """The JSON in a text; the text itself if it is none."""
    try:
        return decode_body(text.encode(errors="replace"))
    except InvalidRequest:
        return clean_text(text)


class OpenImageCall(OpenServerCall):
    """A call that makes or edits an image.

    It gets the model's prompt as `revised_prompt`, and its `action`, when the arguments are
    complete; the arguments themselves have no events.
    """

    kind = "image_generation_call"
    prefix = ID_PREFIXES[kind]
    completed_event = ImageCompleted

    def open_events(self) -> list[Event]:
        return [self.added(), ImageInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        arguments = _decoded_query(self.arguments)
        prompt, action = arguments, None
        if isinstance(arguments, dict):
            prompt, action = arguments.get("prompt"), arguments.get("action")
        if isinstance(prompt, str) and prompt.strip() and not prompt.lstrip().startswith("{"):
            self.fields = {**self.fields, "revised_prompt": prompt.strip()}
        if action in ("generate", "edit"):
            self.fields = {**self.fields, "action": action}
        return [ImageGenerating(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {"error": {"type": "image_generation_error", "code": None, "message": message}}


class OpenCodeCall(OpenServerCall):
    """Code for a container: `container_id`, and `code` when it is complete.

    The code streams as the model writes it. Its `outputs` are stored in it, and shown only on
    request (models/wire/response.py).
    """

    kind = "code_interpreter_call"
    prefix = ID_PREFIXES[kind]
    completed_event = CodeCompleted

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **fields)
        self._unwrapper = InputUnwrapper("code")
        self._code = io.StringIO()

    def to_json(self) -> Item:
        item = super().to_json()
        return item if "code" in item else {**item, "code": self._code.getvalue()}

    def open_events(self) -> list[Event]:
        return [self.added(), CodeInProgress(self.id, self.output_index)]

    def push(self, arguments: str) -> list[Event]:
        return [*super().push(arguments), *self._append_code(self._unwrapper.unwrap(arguments))]

    def arguments_done(self) -> list[Event]:
        events = self._append_code(self._unwrapper.flush(self.arguments))
        self.fields = {**self.fields, "code": self._code.getvalue()}
        return [
            *events,
            CodeDone(self.id, self.output_index, self.fields["code"]),
            CodeInterpreting(self.id, self.output_index),
        ]

    def failure_fields(self, message: str) -> dict[str, Any]:
        return {"outputs": [{"type": "logs", "logs": message}]}

    def _append_code(self, code: str) -> list[Event]:
        self._code.write(code)
        return [CodeDelta(self.id, self.output_index, code)] if code else []


class OpenContainerShell(OpenServerCall):
    """`shell_call` in a container: `call_id`, `environment`, and `action` when it is complete.

    It is completed then. What the commands print is an item of its own (`OpenShellOutput`).
    """

    kind = "shell_call"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"action": {"commands": []}, **fields})

    @property
    def known_id(self) -> str:
        return str(self.fields["call_id"])

    def arguments_done(self) -> list[Event]:
        parsed = parse_arguments(self.kind, self.arguments)
        if parsed is not None:
            self.fields = {**self.fields, **parsed}
        self.status = "completed"
        return [
            *command_events(self.output_index, self.fields["action"]["commands"]),
            ItemDone(self.output_index, self.to_json()),
        ]

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:  # noqa: ARG002 - a call beyond the limit is closed already
        return []


class OpenShellOutput(OpenServerCall):
    """`shell_call_output` of commands in a container: `call_id`, and `output` when they have run.
    This server opens it, not the model."""

    kind = "shell_call_output"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"output": [], **fields})

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:  # noqa: ARG002 - items of this kind do not fail
        return super().result(fields, failed=False)

    def status_events(self) -> list[Event]:
        return list(shell_output_events(self.to_json(), self.output_index))

    def failure_fields(self, message: str) -> dict[str, Any]:
        outcome = {"type": "exit", "exit_code": 1}
        return {"output": [{"stdout": "", "stderr": message, "outcome": outcome}]}


_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


class OpenPicture(OpenItem):
    """`image_generation_call`. Its `result` is there at its end."""

    kind = "image_generation_call"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, result: str) -> None:
        """`result`: the picture in base64."""
        super().__init__(output_index, item_id)
        self._result = result

    def to_json(self) -> Item:
        item: Item = {"id": self.id, "type": self.kind, "status": self.status}
        return item if self.is_open else {**item, "result": self._result}

    def open_events(self) -> list[Event]:
        return [
            self.added(),
            ImageInProgress(self.id, self.output_index),
            ImageGenerating(self.id, self.output_index),
        ]

    def closing_events(self, status: str) -> list[Event]:
        return [ImageCompleted(self.id, self.output_index)] if status == "completed" else []


def base64_of(url: str) -> str:
    """The bytes in a data URL, in base64; empty for any other address."""
    match = _DATA_URL.match(url)
    return url[match.end() :] if match is not None else ""


_CALL_CLASSES: dict[str, type[OpenServerCall]] = {
    kind.kind: kind
    for kind in (
        *(OpenListTools, OpenMcpCall, OpenWebSearchCall, OpenFileSearchCall),
        *(OpenToolSearch, OpenFoundTools, OpenImageCall, OpenCodeCall, OpenShellOutput),
    )
}


def restore_call(output_index: int, item: Item) -> OpenServerCall:
    """The open call that was stored as this item."""
    return _CALL_CLASSES[item["type"]].from_item(output_index, item)
