"""Requests that are forwarded to upstreams, and their answers (docs/adr/0016, 0050)."""
