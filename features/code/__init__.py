"""Code that models run: containers, the tools that use them, and the sandboxes that hold them
(docs/code.md)."""
