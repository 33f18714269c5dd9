"""Tool search: tools that are loaded on demand, for any model (docs/tools.md)."""
