"""Projects and their API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import secrets

import psycopg

from models.ids import new_uuid


def new_key() -> str:
    """A fresh key: `bb-` and 43 URL-safe characters (256 bits)."""
    return f"bb-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> bytes:
    """The SHA-256 of a key: what is stored, looked up and compared. A key has 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def bootstrap(dsn: str, key: str) -> None:
    """Makes `key` valid for the project `default`, creating both when they are missing. Idempotent."""
    _store(dsn, "default", key)


def create(dsn: str, project: str) -> str:
    """A new key for the project of that name, which is made when it is missing. The key is returned once and never again."""
    key = new_key()
    _store(dsn, project, key)
    return key


def _store(dsn: str, project: str, key: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO projects (id, name) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING",
            (new_uuid(), project),
        )
        connection.execute(
            "INSERT INTO api_keys (id, project_id, prefix, hash) SELECT %s, id, %s, %s FROM projects WHERE name = %s ON CONFLICT (hash) DO NOTHING",
            (new_uuid(), key[:8], hash_key(key), project),
        )
