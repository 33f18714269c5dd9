"""Routes that run a response only for its result: compacting a history, and counting tokens."""
