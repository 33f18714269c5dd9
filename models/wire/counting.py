"""The usage of a response whose tokens were only counted (docs/state.md)."""

COUNTED_BY = "counted_by"
"""Key in the stored usage: `upstream`, `tokenizer` or `estimate`. Clients see it as a header."""
