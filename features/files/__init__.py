"""Files (docs/files.md)."""
