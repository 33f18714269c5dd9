"""Vector stores and file search (docs/vector-stores.md)."""
