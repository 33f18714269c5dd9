"""Chat completions to Responses and back. Pure: no I/O, no clock, no randomness of its own."""
