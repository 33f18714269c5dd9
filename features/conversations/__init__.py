"""`/v1/conversations` (docs/wire.md)."""
