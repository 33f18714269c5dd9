"""Batches: what clients do with them, and the responses that are made of their lines (ADR 0049)."""
