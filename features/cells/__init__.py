"""Several deployments that serve as one (docs/cells.md)."""
