"""A response that has ended without being completed is run again, as a new one (ADR 0073)."""
