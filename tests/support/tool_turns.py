"""Shared by tests of the tool loop: turns that call tools, and the MCP server in a request."""

import json
import secrets

from tests.support.api import JSON
from tests.support.fake_upstream import Step, call, done, finish, usage
from tests.support.mcp_servers import McpServers

TOOL_SETTINGS = {
    "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
    "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32),
}
"""Settings with which a deployment may call MCP servers on this machine."""


def tool_turn(*calls: tuple[str, str]) -> list[Step]:
    """A turn that calls counting tools: (tool, key) each."""
    call_steps = [
        call(nr, f"call_{nr}", tool, json.dumps({"key": key}))
        for nr, (tool, key) in enumerate(calls)
    ]
    return [*call_steps, finish("tool_calls"), usage(), done()]


def counting_server(database_server: McpServers) -> JSON:
    """The counting server, whose calls need no approval."""
    return {
        "type": "mcp",
        "server_label": "counting",
        "server_url": database_server.url("counting"),
        "require_approval": "never",
    }


def item_statuses(response: JSON) -> list[str]:
    """Type and status of each item of the output."""
    return [f"{item['type']} {item['status']}" for item in response["output"]]
