"""Requests that are forwarded to upstreams, and their answers (docs/proxied-endpoints.md)."""
