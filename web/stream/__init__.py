"""Events on their way to a client: from Redis and the event log to Server-Sent Events."""
