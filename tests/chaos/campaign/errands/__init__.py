"""The clients of a round that make something else than a plain response."""
