"""The single-machine stack of `up`: databases, web, workers, and their supervisor
(docs/architecture.md)."""
