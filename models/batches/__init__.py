"""Batches: what web processes and workers share of them (ADR 0049)."""
