"""Connections that are made for a client: to files, MCP servers and search providers."""
