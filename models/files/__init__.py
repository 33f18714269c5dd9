"""The content of files: where it is stored, and what it is found to be (ADR 0048)."""
