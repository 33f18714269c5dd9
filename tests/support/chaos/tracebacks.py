"""Exceptions that processes may log while a server is down; any other traceback fails a stack."""

POSTGRES_TRACEBACKS = ("psycopg.", "psycopg_pool.")
REDIS_TRACEBACKS = (
    "redis.exceptions.",
    "kombu.exceptions.OperationalError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "BrokenPipeError",
)
"""Logged by Celery and redis-py."""
SERVER_TRACEBACKS = (*POSTGRES_TRACEBACKS, *REDIS_TRACEBACKS)
