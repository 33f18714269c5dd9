"""`python -m bench.tool_server PORT`: an MCP server with one tool, at `/mcp`."""

import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("bench", log_level="CRITICAL")


@server.tool()
def look_up() -> str:
    """Returns a fact."""
    return "The answer is 42."


if __name__ == "__main__":
    uvicorn.run(
        server.streamable_http_app(), port=int(sys.argv[1]), access_log=False, log_level="warning"
    )
