"""The raw chain: the same path as ours with nothing in it that a response needs.

A front (front.py) inserts a row, pushes its id to Redis and relays what the worker publishes; a
worker (worker.py) calls the upstream, renames each delta and publishes it. No validation, no keys,
no log, no recovery. Every measurement of ours is divided by one of this chain in the same run, so
the ratio says what our guarantees cost, and depends little on the machine.
"""

JOBS = "raw:jobs"
"""The Redis list of jobs: JSON of `id` and `model`."""
EVENTS = "raw:events"
"""The Redis channel: 16 bytes of the id, then an SSE frame; without a frame: the end."""
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS raw_jobs (
        id uuid PRIMARY KEY, status text NOT NULL, body jsonb NOT NULL
    )
"""
INSERT = "INSERT INTO raw_jobs VALUES (%s, 'queued', %s)"
END = "UPDATE raw_jobs SET status = 'completed' WHERE id = %s"
