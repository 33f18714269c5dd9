"""The create that runs a response again: the stored request, with what may be changed. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.db.queries.read import ResponseRow
from models.errors import InvalidRequest
from models.ids import conversation_id, response_id
from models.lifecycle import TERMINAL
from models.wire.checks.basic import Array, OpenObject
from models.wire.checks.faults import not_an_object, shorten, unknown_parameter
from models.wire.events import Item
from models.wire.pairing import is_output
from models.wire.response import RETRY_OF, STOP

CHANGEABLE = ("model", "background", "stream", "previous_response_id", "wait_for_previous")
"""Parameters of the create that a retry may change, with their meaning there."""
_TOOLS = Array(OpenObject())
_NOT_REPEATED = (RETRY_OF, STOP, "stream_options")


def require_retryable(row: ResponseRow) -> None:
    """Raises InvalidRequest for a response that has not ended."""
    if row.status not in TERMINAL:
        raise InvalidRequest(
            "The response has not ended. Cancel it first, or wait for its end.",
            param="response_id",
            code="response_not_ended",
        )


def retry_body(row: ResponseRow, items: Sequence[Item], changes: Any) -> dict[str, Any]:
    """The body of the create.

    `items`: the stored input. `changes`: the body of the retry, as JSON. Raises InvalidRequest; the
    create checks the values of the parameters.
    """
    if type(changes) is not dict:
        raise not_an_object(changes)
    given = {name: value for name, value in changes.items() if value is not None}
    for name in given:
        if name != "tools" and name not in CHANGEABLE:
            raise unknown_parameter(name)
    body = {name: value for name, value in row.parameters.items() if name not in _NOT_REPEATED}
    body |= {"model": row.model, "background": row.background, "store": row.store}
    body["input"] = [_without_own_id(item) for item in items]
    if row.previous_response_id is not None:
        body["previous_response_id"] = response_id(row.previous_response_id)
    if row.conversation_id is not None:
        body["conversation"] = conversation_id(row.conversation_id)
    if servers := mcp_servers(row.parameters):
        body["tools"] = _with_credentials(body["tools"], servers, given.get("tools", []))
    elif "tools" in given:
        _servers_by_label(given["tools"], servers)
    return body | {name: given[name] for name in CHANGEABLE if name in given}


def mcp_servers(parameters: Mapping[str, Any]) -> list[str]:
    """The labels of the MCP servers of a request. Their credentials are deleted with its end."""
    return [tool["server_label"] for tool in parameters.get("tools", ()) if tool["type"] == "mcp"]


def _without_own_id(item: Item) -> Item:
    """A message or an output of a call gets a new id: a conversation may have the old one."""
    if item["type"] != "message" and not is_output(item):
        return item
    return {name: value for name, value in item.items() if name != "id"}


def _with_credentials(
    tools: Sequence[dict[str, Any]], servers: Sequence[str], given: Any
) -> list[dict[str, Any]]:
    """The stored tools, with what the retry gives of each MCP server."""
    by_label = _servers_by_label(given, servers)
    lacking = [label for label in servers if label not in by_label]
    if lacking:
        names = ", ".join(f"'{shorten(label)}'" for label in lacking)
        raise InvalidRequest(
            "The addresses and credentials of MCP servers are deleted when a response ends. Send "
            "'tools' with 'type': 'mcp', 'server_label', 'server_url' and, where they are needed, "
            f"'authorization' or 'headers' of: {names}.",
            param="tools",
            code="mcp_credentials_required",
        )
    return [
        tool | by_label[tool["server_label"]] if tool["type"] == "mcp" else tool for tool in tools
    ]


def _servers_by_label(given: Any, servers: Sequence[str]) -> dict[str, dict[str, Any]]:
    by_label: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(_TOOLS(given, "tools")):
        label = tool.get("server_label")
        if tool.get("type") != "mcp" or label not in servers:
            raise InvalidRequest(
                "'tools' of a retry has only the MCP servers of the response, each by its "
                "'server_label': all other tools are repeated as they are stored.",
                param=f"tools[{index}]",
                code="invalid_value",
            )
        by_label[label] = tool
    return by_label
