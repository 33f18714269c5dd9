"""Projects and their API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import secrets

import psycopg

from models.db.database import execute_sync
from models.db.queries.api_keys import INSERT_API_KEY, INSERT_PROJECT
from models.ids import new_uuid


def new_key() -> str:
    """A new key: `bb-` and 43 URL-safe characters (256 random bits)."""
    return f"bb-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> bytes:
    """The SHA-256 of a key, which is stored and compared. A key has 256 random bits, so a hash
    without salt is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def bootstrap(dsn: str, key: str) -> None:
    """Makes `key` valid for the project `default`; creates both if they do not exist.
    Idempotent."""
    _store(dsn, "default", key)


def create(dsn: str, project: str) -> str:
    """Creates a key for the project of that name, and the project if it does not exist. The key is
    returned here only: it cannot be read from the database later."""
    key = new_key()
    _store(dsn, project, key)
    return key


def _store(dsn: str, project: str, key: str) -> None:
    with psycopg.connect(dsn, target_session_attrs="primary") as connection:
        execute_sync(connection, INSERT_PROJECT, {"id": new_uuid(), "name": project})
        execute_sync(
            connection,
            INSERT_API_KEY,
            {"id": new_uuid(), "prefix": key[:8], "hash": hash_key(key), "project": project},
        )
