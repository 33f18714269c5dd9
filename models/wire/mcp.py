"""The `mcp` tool: a server of the Model Context Protocol that this server lists and calls for the model (contract §6.2, design §11).

What only the server itself may know (`authorization`, `headers`, and the path of an address, which may carry a key) is told apart by
`sealed_apart`: it is never stored plain and never shown. OpenAI shows the same rest of it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import (
    array,
    boolean,
    choice,
    json_object,
    record,
    shorten,
    string,
    too_long,
    wrong_type,
)
from models.wire.events import Item

Tool = Mapping[str, Any]
"""A checked `mcp` tool."""

_UNSUPPORTED_ADDRESSES = {
    "connector_id": "this server has no connectors. Give the address of a remote MCP server in 'server_url'",
    "tunnel_id": "this server has no tunnels. Give the address of a remote MCP server in 'server_url'",
    "command": "MCP servers are reached over HTTP only, never started as a command (stdio). Give an address in 'server_url'",
}
"""Other ways to name a server -> why not."""

_ORIGIN = r"[hH][tT][tT][pP][sS]?://[^\x00-\x20/?#@\\]+"
_URL = rf"{_ORIGIN}([/?#][^\x00-\x20]*)?"
"""What can be parted into what is shown and what is sealed; whether it is a good address is the guard's to say (models/egress.py)."""

_MAX_HEADERS = 64
_MAX_HEADER_BYTES = 16 * 1024
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TRANSPORT_HEADERS = frozenset(
    (
        *(
            "accept",
            "accept-encoding",
            "connection",
            "content-encoding",
            "content-length",
            "content-type",
            "expect",
            "host",
            "keep-alive",
        ),
        *(
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
            "mcp-session-id",
            "proxy-authorization",
            "proxy-connection",
        ),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that the transport sets itself."""

_NAMES = array(string(), at_most=10_000)
_FILTER = record({}, {"tool_names": _NAMES, "read_only": boolean})
_WORD = choice("always", "never")
_BY_TOOL = record({}, {"always": _FILTER, "never": _FILTER})


def _allowed_tools(value: Any, where: str) -> list[str] | dict[str, Any]:
    """Names, or a filter."""
    if type(value) is not list and type(value) is not dict:
        raise wrong_type(where, "an array of tool names or a filter object", value)
    kept: list[str] | dict[str, Any] = (
        _NAMES(value, where) if type(value) is list else _FILTER(value, where)
    )
    return kept


def _require_approval(value: Any, where: str) -> str | dict[str, Any]:
    """A word for all tools, or a filter for each of two words."""
    if type(value) is not str and type(value) is not dict:
        raise wrong_type(where, "'always', 'never', or an object with filters", value)
    kept: str | dict[str, Any] = (
        _WORD(value, where) if type(value) is str else _BY_TOOL(value, where)
    )
    return kept


def _authorization(value: Any, where: str) -> str:
    token: str = _TOKEN(value, where)
    if not _HEADER_VALUE.fullmatch(token):
        raise _not_a_header(where)
    return token


def _headers(value: Any, where: str) -> dict[str, str]:
    """Header fields as they are to be sent. An error never repeats a value."""
    headers = {
        name: found for name, found in json_object(value, where).items() if found is not None
    }
    if len(headers) > _MAX_HEADERS:
        raise too_long(where, "array", _MAX_HEADERS, len(headers))
    for name, found in headers.items():
        place = f"{where}.{shorten(name)}"
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidRequest(
                f"Invalid '{place}': this is not the name of an HTTP header.",
                param=where,
                code="invalid_value",
            )
        if name.lower() in _TRANSPORT_HEADERS:
            message = f"Invalid '{place}': the transport sets this header itself."
            raise InvalidRequest(message, param=where, code="invalid_value")
        if type(found) is not str:
            raise wrong_type(place, "a string", found)
        if not _HEADER_VALUE.fullmatch(found):
            raise _not_a_header(place)
    size = sum(len(name) + len(found) for name, found in headers.items())
    if size > _MAX_HEADER_BYTES:
        raise too_long(where, "string", _MAX_HEADER_BYTES, size)
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidRequest(
            f"Invalid '{where}': a header is given twice.", param=where, code="invalid_value"
        )
    return headers


def _not_a_header(where: str) -> InvalidRequest:
    message = f"Invalid '{where}': it holds a character that no HTTP header may hold."
    return InvalidRequest(message, param=where, code="invalid_value")


_TOKEN = string(non_empty=True, at_most=_MAX_HEADER_BYTES)
_MCP_FIELDS = record(
    {
        "server_label": string(non_empty=True, at_most=64, pattern="[A-Za-z][A-Za-z0-9_-]*"),
        "server_url": string(non_empty=True, at_most=8192, pattern=_URL),
    },
    {
        "server_description": string(),
        "allowed_tools": _allowed_tools,
        "require_approval": _require_approval,
        "authorization": _authorization,
        "headers": _headers,
    },
)


def mcp_tool(value: Any, where: str) -> dict[str, Any]:
    """The tool's fields, credentials included; whether its address may be reached is asked later, of the guard.

    Raises InvalidRequest for a way to name a server that is not one of ours, above all for a command to start.
    """
    for name, why in _UNSUPPORTED_ADDRESSES.items():
        if value.get(name) is not None:
            raise InvalidRequest(
                f"'{where}.{name}' is not supported: {why}.",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )
    tool: dict[str, Any] = _MCP_FIELDS(value, where)
    if "authorization" in tool and any(
        name.lower() == "authorization" for name in tool.get("headers", ())
    ):
        message = (
            f"Invalid '{where}': give either 'authorization' or 'headers.Authorization', not both."
        )
        raise InvalidRequest(
            message, param=f"{where}.authorization", code="mutually_exclusive_parameters"
        )
    return tool


def require_distinct_labels(tools: Sequence[Tool], where: str) -> None:
    """Raises InvalidRequest when two servers have the same label: items name a server by nothing else."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        label = tool.get("server_label")
        if label in seen:
            message = f"Invalid '{where}[{index}].server_label': there is already an MCP server with the label '{label}'."
            raise InvalidRequest(
                message, param=f"{where}[{index}].server_label", code="invalid_value"
            )
        if label is not None:
            seen.add(label)


def split_credentials(
    tools: Sequence[Tool],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The tools as they may be stored and shown, and what is to be sealed: server_label -> `server_url`, `authorization`, `headers`."""
    public: list[dict[str, Any]] = []
    sealed: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool["type"] != "mcp":
            public.append(dict(tool))
            continue
        sealed[tool["server_label"]] = {
            name: tool[name] for name in ("server_url", "authorization", "headers") if name in tool
        }
        kept = {
            name: found for name, found in tool.items() if name not in ("authorization", "headers")
        }
        public.append({**kept, "server_url": _origin(tool["server_url"])})
    return public, sealed


def _origin(url: str) -> str:
    """Scheme, host and port. Some servers give out addresses that hold a key, in the path or in the query."""
    found = re.match(_ORIGIN, url)
    assert found is not None
    return found[0]


def is_allowed(tool: Tool, name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether `allowed_tools` lets the model see this one of the server's tools. `annotations` are the server's own words about it."""
    allowed = tool.get("allowed_tools")
    if allowed is None:
        return True
    if isinstance(allowed, list):
        return name in allowed
    return not allowed or _matches(allowed, name, annotations)


def needs_approval(tool: Tool, name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether a call must be approved by the client first. Where nothing is said, it must: that is OpenAI's default too."""
    policy = tool.get("require_approval", "always")
    if isinstance(policy, str):
        return policy == "always"
    if "always" in policy and _matches(policy["always"], name, annotations):
        return True
    return not ("never" in policy and _matches(policy["never"], name, annotations))


def _matches(tool_filter: Mapping[str, Any], name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether a filter means this tool: everything it says must be true of it; one that says nothing means none."""
    names, read_only = tool_filter.get("tool_names"), tool_filter.get("read_only")
    if names is None and read_only is None:
        return False
    return (names is None or name in names) and (
        read_only is None or is_read_only(annotations) == read_only
    )


def is_read_only(annotations: Mapping[str, Any]) -> bool:
    """Whether the server says that a tool changes nothing."""
    return annotations.get("readOnlyHint") is True


def is_repeatable(annotations: Mapping[str, Any]) -> bool:
    """Whether the server says that calling a tool twice does no more than calling it once (design §4.6)."""
    return is_read_only(annotations) or annotations.get("idempotentHint") is True


def unmet_approvals(items: Sequence[Item]) -> list[str]:
    """The ids that approval responses among these items name although no approval request before them has such an id."""
    requested: set[str] = set()
    unmet: list[str] = []
    for item in items:
        if item["type"] == "mcp_approval_request":
            requested.add(item["id"])
        elif (
            item["type"] == "mcp_approval_response" and item["approval_request_id"] not in requested
        ):
            unmet.append(item["approval_request_id"])
    return unmet
