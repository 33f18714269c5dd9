"""The raw chain: the same path as ours with nothing in it that a response needs.

A front (front.py) inserts a row, pushes its id to Redis and relays what the worker publishes; a
worker (worker.py) calls the upstream, renames each delta and publishes it. No validation, no keys,
no log, no recovery. Every measurement of ours is divided by one of this chain in the same run, so
the ratio says what our guarantees cost, and depends little on the machine.

It is written to cost as little as a Python chain of the same libraries can: bytes go from one
callback to the next, Redis gets its commands without redis-py (redis_connection.py), a database
connection is borrowed without a check, and deltas of many responses are published by one command.
"""

import asyncio

import psycopg

JOBS = "raw:jobs"
"""The Redis list of jobs: JSON of `id` and `model`."""
EVENTS = "raw:events"
"""The Redis channel: messages, each 16 bytes of the id, 4 of the length, then SSE frames. Without
frames: the end."""
CANCELS = "raw:cancels"
"""The Redis channel of cancelled ids, 16 bytes each; no bytes: all."""
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS raw_jobs (
        id uuid PRIMARY KEY, status text NOT NULL, body jsonb NOT NULL
    )
"""
INSERT = b"INSERT INTO raw_jobs VALUES (%s, 'queued', %s)"
END = b"UPDATE raw_jobs SET status = 'completed' WHERE id = %s"
CANCEL = b"UPDATE raw_jobs SET status = 'cancelled' WHERE id = %s"
_CONNECTIONS = 16


class Connections:
    """A few database connections; a statement waits for a free one."""

    def __init__(self) -> None:
        self._free = asyncio.LifoQueue[psycopg.AsyncConnection[tuple[object, ...]]]()

    async def open(self, url: str) -> None:
        for _ in range(_CONNECTIONS):
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
            connection.prepare_threshold = 0
            self._free.put_nowait(connection)

    async def execute(self, query: bytes, values: tuple[object, ...]) -> None:
        """Runs a statement in a transaction of its own."""
        connection = await self._free.get()
        try:
            await connection.execute(query, values)
        finally:
            self._free.put_nowait(connection)
