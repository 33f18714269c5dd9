"""Server tools: MCP, web search, and the toolbox that runs their calls."""
