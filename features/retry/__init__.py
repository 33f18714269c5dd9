"""A response that has ended is run again, as a new one (ADR 0073)."""
