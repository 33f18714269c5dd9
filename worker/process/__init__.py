"""One worker process: its start and stop, what it may take on, and its work beside responses."""
