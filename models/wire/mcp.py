"""The `mcp` tool: an MCP server whose tools this server lists and calls for the model.

`authorization`, `headers` and the path of `server_url` (which may contain a key) are credentials:
`split_credentials` separates them. They are only stored sealed, and never shown. The fields of the
tool are checked in models/wire/checks/server_tools.py.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from models.wire.events import Item
from models.wire.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE

Tool = Mapping[str, Any]
"""A checked `mcp` tool."""

HIDDEN_FIELDS = ("authorization", "headers")
"""Fields that a Response never shows."""

CREDENTIAL_FIELDS = ("server_url", *HIDDEN_FIELDS)
"""Fields that are sealed. Of `server_url`, the origin is stored in plain text too."""

ORIGIN = r"[hH][tT][tT][pP][sS]?://[^\x00-\x20/?#@\\]+"
"""Pattern for the part of `server_url` that is shown: scheme, host and port."""


def split_credentials(
    tools: Sequence[Tool],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The tools without credentials, and server_label -> the credentials, which must be sealed."""
    public: list[dict[str, Any]] = []
    credentials: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool["type"] != "mcp":
            public.append(dict(tool))
            continue
        credentials[tool["server_label"]] = {
            name: tool[name] for name in CREDENTIAL_FIELDS if name in tool
        }
        public.append({**without_hidden_fields(tool), "server_url": origin(tool["server_url"])})
    return public, credentials


def without_hidden_fields(tool: Tool) -> dict[str, Any]:
    """The tool as a Response may show it."""
    return {name: value for name, value in tool.items() if name not in HIDDEN_FIELDS}


def origin(url: str) -> str:
    """Scheme, host and port. Some servers issue URLs with a key in the path or the query."""
    match = re.match(ORIGIN, url)
    assert match is not None
    return match[0]


def is_allowed(tool: Tool, name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether `allowed_tools` lets the model see this tool of the server.

    `annotations` are what the server lists about the tool.
    """
    allowed = tool.get("allowed_tools")
    if allowed is None:
        return True
    if isinstance(allowed, list):
        return name in allowed
    return not allowed or _matches(allowed, name, annotations)


def needs_approval(tool: Tool, name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether the client must approve a call first. It must by default, as with OpenAI."""
    policy = tool.get("require_approval", "always")
    if isinstance(policy, str):
        return policy == "always"
    if "always" in policy and _matches(policy["always"], name, annotations):
        return True
    return not ("never" in policy and _matches(policy["never"], name, annotations))


def _matches(tool_filter: Mapping[str, Any], name: str, annotations: Mapping[str, Any]) -> bool:
    """Whether the tool satisfies all conditions of a filter. An empty filter matches no tool."""
    names, read_only = tool_filter.get("tool_names"), tool_filter.get("read_only")
    if names is None and read_only is None:
        return False
    return (names is None or name in names) and (
        read_only is None or is_read_only(annotations) == read_only
    )


def is_read_only(annotations: Mapping[str, Any]) -> bool:
    """Whether the server lists the tool as one that changes nothing."""
    return annotations.get("readOnlyHint") is True


def is_repeatable(annotations: Mapping[str, Any]) -> bool:
    """Whether a second call has no further effect, so that a recovery may repeat it."""
    return is_read_only(annotations) or annotations.get("idempotentHint") is True


def approval_requests(items: Iterable[Item]) -> dict[str, Item]:
    """The approval requests among these items, by id."""
    return {item["id"]: item for item in items if item["type"] == APPROVAL_REQUEST}


def approval_responses(items: Iterable[Item]) -> dict[str, Item]:
    """The approval responses among these items, by the id of the request that each answers."""
    return {
        item["approval_request_id"]: item for item in items if item["type"] == APPROVAL_RESPONSE
    }


def unmet_approvals(items: Sequence[Item]) -> list[str]:
    """The request ids of approval responses that have no approval request before them here."""
    requested: set[str] = set()
    unmet: list[str] = []
    for item in items:
        if item["type"] == APPROVAL_REQUEST:
            requested.add(item["id"])
        elif item["type"] == APPROVAL_RESPONSE and item["approval_request_id"] not in requested:
            unmet.append(item["approval_request_id"])
    return unmet
