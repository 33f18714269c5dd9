"""Redis: the client, the names of queues and channels, the answer cache."""
