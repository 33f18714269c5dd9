"""The tools `mcp`, `file_search`, `code_interpreter` and `shell` of a request: which server and
which of its tools, with which credentials; which vector stores, and how they are searched; in which
container code runs.

Whether the project has the stores and the container is checked when the request is stored. The
filter is compiled there too (features/retrieval/options.py): this file knows the shape of the tool.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope, reference, whole
from models.wire.checks.basic import (
    Array,
    Boolean,
    ByJsonType,
    Check,
    Choice,
    Integer,
    Number,
    OpenObject,
    Record,
    String,
    Tagged,
    require_object,
)
from models.wire.checks.faults import shorten, too_long, wrong_type
from models.wire.mcp import HIDDEN_FIELDS, ORIGIN
from models.wire.tools import (
    CODE_TOOLS,
    FILE_SEARCH,
    TOOL_SEARCH,
    is_code_tool,
    is_own_file_search,
)

_UNSUPPORTED_ADDRESSES = {
    "connector_id": "this server has no connectors. "
    "Give the address of a remote MCP server in 'server_url'",
    "tunnel_id": "this server has no tunnels. "
    "Give the address of a remote MCP server in 'server_url'",
    "command": "MCP servers are reached over HTTP only, never started as a command (stdio). "
    "Give an address in 'server_url'",
}
"""Fields that name a server in a way that is refused -> the reason."""

_URL = rf"{ORIGIN}([/?#][^\x00-\x20]*)?"
"""A URL that can be divided into what is shown and what is sealed. Whether it may be fetched is
decided by models/egress.py."""

_MAX_HEADERS = 64
_MAX_HEADER_BYTES = 16 * 1024
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TRANSPORT_HEADERS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length"),
        *("content-type", "expect", "host", "keep-alive", "last-event-id"),
        *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
        *("proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that the transport sets itself."""


@dataclass(frozen=True, slots=True)
class _Authorization(Check):
    """A token that can be sent in a header."""

    def __call__(self, value: Any, where: str) -> str:
        token = _TOKEN(value, where)
        if not _HEADER_VALUE.fullmatch(token):
            raise _invalid_header_value(where)
        return token

    def schema(self, scope: SchemaScope) -> Schema:
        return {**_TOKEN.schema(scope), "pattern": whole(_HEADER_VALUE.pattern)}


@dataclass(frozen=True, slots=True)
class _Headers(Check):
    """HTTP header fields. Their values are secret: an error never repeats one."""

    def __call__(self, value: Any, where: str) -> dict[str, str]:
        headers = {
            name: field for name, field in require_object(value, where).items() if field is not None
        }
        if len(headers) > _MAX_HEADERS:
            raise too_long(where, "array", _MAX_HEADERS, len(headers))
        for name, field in headers.items():
            _require_header(name, field, where)
        size = sum(len(name) + len(field) for name, field in headers.items())
        if size > _MAX_HEADER_BYTES:
            raise too_long(where, "string", _MAX_HEADER_BYTES, size)
        if len({name.lower() for name in headers}) < len(headers):
            raise _invalid(where, f"Invalid '{where}': a header is given twice.")
        return headers

    def schema(self, scope: SchemaScope) -> Schema:
        value: Schema = {"type": "string", "pattern": whole(_HEADER_VALUE.pattern)}
        return {
            "type": "object",
            "maxProperties": _MAX_HEADERS,
            "propertyNames": {"pattern": whole(_HEADER_NAME.pattern)},
            "additionalProperties": scope.optional(value),
        }


def _require_header(name: str, value: Any, where: str) -> None:
    place = f"{where}.{shorten(name)}"
    if not _HEADER_NAME.fullmatch(name):
        raise _invalid(where, f"Invalid '{place}': this is not the name of an HTTP header.")
    if name.lower() in _TRANSPORT_HEADERS:
        raise _invalid(where, f"Invalid '{place}': the transport sets this header itself.")
    if type(value) is not str:
        raise wrong_type(place, "a string", value)
    if not _HEADER_VALUE.fullmatch(value):
        raise _invalid_header_value(place)


def _invalid_header_value(where: str) -> InvalidRequest:
    return _invalid(
        where, f"Invalid '{where}': it contains a character that is not allowed in an HTTP header."
    )


def _invalid(where: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=where, code="invalid_value")


_BOOLEAN = Boolean()
_TEXT = String()
_TOKEN = String(non_empty=True, at_most=_MAX_HEADER_BYTES)
_TOOL_NAMES = Array(_TEXT, at_most=10_000)
_FILTER = Record({}, {"tool_names": _TOOL_NAMES, "read_only": _BOOLEAN})
_ALLOWED_TOOLS = ByJsonType(
    "an array of tool names or a filter object", {list: _TOOL_NAMES, dict: _FILTER}
)
_REQUIRE_APPROVAL = ByJsonType(
    "'always', 'never', or an object with filters",
    {str: Choice("always", "never"), dict: Record({}, {"always": _FILTER, "never": _FILTER})},
)
IMAGE_GENERATION_TOOL = Record(
    {},
    {
        "action": Choice("auto", "generate", "edit"),
        "background": Choice("auto", "opaque", "transparent"),
        "input_fidelity": Choice("low", "high"),
        "input_image_mask": Record(
            {},
            {
                "file_id": String(non_empty=True),
                "image_url": String(pattern=r"(https?://|data:)\S*", expected="an image URL"),
            },
        ),
        "model": String(non_empty=True),
        "moderation": Choice("auto", "low"),
        "output_compression": Integer(0, 100),
        "output_format": Choice(
            *("png", "webp", "jpeg", "gif"), refused={"svg": "images are made of pixels here"}
        ),
        "partial_images": Integer(0, 3),
        "quality": Choice("auto", "low", "medium", "high", "xhigh", "max"),
        "size": String(pattern="auto|[1-9][0-9]{1,4}x[1-9][0-9]{1,4}"),
    },
)
"""Whether the model that makes images knows an option is for its upstream to say."""


def usable_image_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool as this server runs it, where an upstream would have got it unchecked: without the
    options that are wrong."""
    usable: dict[str, Any] = {}
    for name, check in IMAGE_GENERATION_TOOL.optional.items():
        if tool.get(name) is not None:
            with suppress(InvalidRequest):
                usable[name] = check(tool[name], name)
    return usable


_FIELDS = Record(
    {
        "server_label": String(non_empty=True, at_most=64, pattern="[A-Za-z][A-Za-z0-9_-]*"),
        "server_url": String(non_empty=True, at_most=8192, pattern=_URL),
    },
    {
        "server_description": _TEXT,
        "allowed_tools": _ALLOWED_TOOLS,
        "require_approval": _REQUIRE_APPROVAL,
        "authorization": _Authorization(),
        "headers": _Headers(),
        "defer_loading": _BOOLEAN,
    },
)
_FOUND = Record({"server_label": _FIELDS.required["server_label"], "allowed_tools": _TOOL_NAMES})


@dataclass(frozen=True, slots=True)
class FoundMcpTools(Check):
    """MCP tools that a tool search has found: names, of a server that the request has itself. A
    server in an item is refused: its credentials would be stored and shown."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        for name in ("server_url", "connector_id", "tunnel_id", *HIDDEN_FIELDS):
            if value.get(name) is not None:
                raise InvalidRequest(
                    f"'{where}.{name}' is not supported: an item cannot add an MCP server. Send it "
                    "in 'tools' of the request.",
                    param=f"{where}.{name}",
                    code="unsupported_parameter",
                )
        return _FOUND(value, where)

    def schema(self, scope: SchemaScope) -> Schema:
        return _FOUND.schema(scope)


@dataclass(frozen=True, slots=True)
class McpTool(Check):
    """An `mcp` tool, credentials included. Whether its URL may be fetched is checked later
    (models/egress.py). A server that is named in another way, such as by a command to start, is
    refused."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        for name, reason in _UNSUPPORTED_ADDRESSES.items():
            if value.get(name) is not None:
                raise InvalidRequest(
                    f"'{where}.{name}' is not supported: {reason}.",
                    param=f"{where}.{name}",
                    code="unsupported_parameter",
                )
        tool = _FIELDS(value, where)
        if "authorization" in tool and any(
            name.lower() == "authorization" for name in tool.get("headers", ())
        ):
            message = (
                f"Invalid '{where}': give either 'authorization' or "
                "'headers.Authorization', not both."
            )
            raise InvalidRequest(
                message, param=f"{where}.authorization", code="mutually_exclusive_parameters"
            )
        return tool

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _FIELDS.schema(scope)
        fields = schema["properties"]
        if scope.is_input:
            return {
                **schema,
                "properties": {**fields, **dict.fromkeys(_UNSUPPORTED_ADDRESSES, NULL)},
            }
        shown = {name: field for name, field in fields.items() if name not in HIDDEN_FIELDS}
        return {**schema, "properties": shown}


def require_distinct_labels(tools: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises InvalidRequest if two servers have the same label: items name a server only by it."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        label = tool.get("server_label")
        if label in seen:
            place = f"{where}[{index}].server_label"
            message = f"Invalid '{place}': there is already an MCP server with the label '{label}'."
            raise InvalidRequest(message, param=place, code="invalid_value")
        if label is not None:
            seen.add(label)


MAX_RESULTS = 50
"""Results of one search."""
MAX_SEARCHED_STORES = 8
"""Vector stores that one tool searches."""
RANKERS = ("auto", "default-2024-11-15", "default_2024_08_21", "none")

_OPEN_OBJECT = OpenObject()
_WEIGHT = Number(0, 1000)


@dataclass(frozen=True, slots=True)
class _Filter(Check):
    """A filter on the attributes of files: an object here."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return _OPEN_OBJECT(value, where)

    def schema(self, _scope: SchemaScope) -> Schema:
        return reference("VectorStoreFilter")


FILE_SEARCH_TOOL = Record(
    {
        "vector_store_ids": Array(
            String(non_empty=True, at_most=256), at_most=MAX_SEARCHED_STORES, non_empty=True
        )
    },
    {
        "filters": _Filter(),
        "max_num_results": Integer(1, MAX_RESULTS),
        "ranking_options": Record(
            {},
            {
                "ranker": Choice(*RANKERS),
                "score_threshold": Number(0, 1),
                "hybrid_search": Record({}, {"embedding_weight": _WEIGHT, "text_weight": _WEIGHT}),
            },
        ),
    },
)
"""The tool, where this server searches."""


def require_one_search(tools: list[dict[str, Any]], where: str) -> None:
    """Raises InvalidRequest for a second tool search, or a second file search beside one of this
    server: nobody would know which of them a call means."""
    searches = [index for index, tool in enumerate(tools) if tool["type"] == TOOL_SEARCH]
    if len(searches) > 1:
        raise InvalidRequest(
            f"Invalid '{where}[{searches[1]}]': there is already a tool of the type "
            f"'{TOOL_SEARCH}'.",
            param=f"{where}[{searches[1]}]",
            code="invalid_value",
        )
    places = [index for index, tool in enumerate(tools) if tool["type"] == FILE_SEARCH]
    if len(places) > 1 and any(is_own_file_search(tools[index]) for index in places):
        raise InvalidRequest(
            f"Invalid '{where}[{places[1]}]': there is already a tool of the type "
            f"'{FILE_SEARCH}'. One tool may name up to {MAX_SEARCHED_STORES} vector stores.",
            param=f"{where}[{places[1]}]",
            code="invalid_value",
        )


@dataclass(frozen=True, slots=True)
class _EmptyList(Check):
    """An empty list. `reason`: why nothing can be in it, and what to do instead."""

    reason: str

    def __call__(self, value: Any, where: str) -> Any:
        if value != []:
            raise InvalidRequest(
                f"'{where}' is not supported: {self.reason}.",
                param=where,
                code="unsupported_parameter",
            )
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "array", "maxItems": 0}


_DOMAIN = String(non_empty=True, at_most=260)
CONTAINER_FIELDS: dict[str, Check] = {
    "file_ids": Array(String(non_empty=True, at_most=256), at_most=50),
    "memory_limit": Choice("1g", "4g", "16g", "64g"),
    "network_policy": Tagged(
        {
            "disabled": Record({}),
            "allowlist": Record(
                {"allowed_domains": Array(_DOMAIN, at_most=100, non_empty=True)},
                {"domain_secrets": _EmptyList("this server stores and shows the tools")},
            ),
        }
    ),
    "skills": _EmptyList(
        "containers of this server have no skills. Give the files of a skill in 'file_ids', and "
        "say in 'instructions' how to use them"
    ),
}
"""What a client may say of a new container."""
_AUTO_CONTAINER = Record({}, CONTAINER_FIELDS)
_CONTAINER_ID = String(non_empty=True, at_most=256)
CODE_INTERPRETER_TOOL = Record(
    {
        "container": ByJsonType(
            "an id or an object", {str: _CONTAINER_ID, dict: Tagged({"auto": _AUTO_CONTAINER})}
        )
    }
)
CONTAINER_ENVIRONMENTS: dict[str, Check] = {
    "container_auto": _AUTO_CONTAINER,
    "container_reference": Record({"container_id": _CONTAINER_ID}),
}
"""The environments of a shell that this server runs."""


def require_one_container_tool(tools: list[dict[str, Any]], where: str) -> None:
    """Raises InvalidRequest for a second tool of a type that runs in a container: nobody would know
    which of them a call means."""
    for kind in CODE_TOOLS:
        places = [index for index, tool in enumerate(tools) if tool["type"] == kind]
        if len(places) > 1 and any(is_code_tool(tools[index]) for index in places):
            raise InvalidRequest(
                f"Invalid '{where}[{places[1]}]': there is already a tool of the type '{kind}'.",
                param=f"{where}[{places[1]}]",
                code="invalid_value",
            )
