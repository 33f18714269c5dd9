"""Redis: the client, the names of queues and channels, the Celery queue, the answer cache."""
