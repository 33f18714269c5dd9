"""Calls of upstreams: connections, limits, the differences between vendors."""
