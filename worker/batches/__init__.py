"""Batches: their validation, their collection and their end (ADR 0049)."""
