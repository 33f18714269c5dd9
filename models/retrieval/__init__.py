"""Vector stores: what web processes and workers share (docs/vector-stores.md)."""
