"""Batches (docs/batches.md)."""
