"""Files of projects: forms, uploads, and what clients see of them (docs/files.md)."""
