"""The process that runs code of models, apart from all that has credentials (docs/code.md)."""
