"""Projects, their keys and service accounts (docs/projects.md)."""
