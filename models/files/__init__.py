"""The content of files: where it is stored, and what it is found to be (docs/files.md)."""
