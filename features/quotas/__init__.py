"""The quotas of projects: which requests are admitted (docs/limits.md, ADR 0040)."""
