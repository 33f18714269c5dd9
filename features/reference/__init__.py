"""The description of the API at /openapi.json and /docs (docs/wire.md)."""
