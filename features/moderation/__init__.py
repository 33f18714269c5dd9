"""Moderation of what models get and write, by a route of `/v1/moderations` (docs/moderation.md)."""
