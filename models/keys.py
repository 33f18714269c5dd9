"""Projects and their API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import secrets

import psycopg

from models.db.queries.api_keys import INSERT_API_KEY, INSERT_PROJECT
from models.db.search_path import set_search_path
from models.db.sync import execute_sync
from models.ids import new_uuid

KEY_PREFIX_LENGTH = 8
"""How many of a key's first characters are stored, to recognise it by."""
CACHE_SECONDS = 5.0
"""For how long a web process caches a valid key; a revoked key works for at most this long."""


def new_key() -> str:
    """A new key: `bb-` and 43 URL-safe characters (256 random bits)."""
    return f"bb-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> bytes:
    """The SHA-256 of a key, which is stored and compared. A key has 256 random bits, so a hash
    without salt is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def bootstrap(dsn: str, key: str, schema: str | None = None) -> None:
    """Makes `key` valid for the project `default`; creates both if they do not exist. `schema`: the
    setting `database_schema`. Idempotent."""
    _store(dsn, "default", key, schema)


def create(dsn: str, project: str, schema: str | None = None) -> str:
    """Creates a key for the project of that name, and the project if it does not exist. `schema`:
    the setting `database_schema`. The key is returned here only: it cannot be read from the
    database later."""
    key = new_key()
    _store(dsn, project, key, schema)
    return key


def _store(dsn: str, project: str, key: str, schema: str | None) -> None:
    with psycopg.connect(dsn, target_session_attrs="primary") as connection:
        connection.execute(set_search_path(schema))
        execute_sync(connection, INSERT_PROJECT, {"id": new_uuid(), "name": project})
        execute_sync(
            connection,
            INSERT_API_KEY,
            {
                "id": new_uuid(),
                "prefix": key[:KEY_PREFIX_LENGTH],
                "hash": hash_key(key),
                "project": project,
            },
        )
