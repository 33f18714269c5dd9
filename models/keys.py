"""API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from models.db.search_path import set_search_path
from models.db.sync import execute_sync
from models.ids import new_uuid
from models.projects.scopes import DEFAULT_SCOPES, Scope

KEY_PREFIX_LENGTH = 8
"""How many of a key's first characters are stored, to recognise it by."""
CACHE_SECONDS = 5.0
"""For how long a web process caches a valid key. It notices most changes earlier: with its next
heartbeat (models/ownership/access_revision.py)."""


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a new key may do, and how long."""

    scopes: frozenset[Scope] = DEFAULT_SCOPES
    name: str | None = None
    allowed_models: tuple[str, ...] | None = None
    """None: all that its project may use"""
    lifetime: timedelta | None = None
    """None: it does not expire"""

    @property
    def values(self) -> dict[str, object]:
        """The values of the statements that insert a key."""
        return {
            "scopes": sorted(scope.value for scope in self.scopes),
            "name": self.name,
            "allowed_models": None if self.allowed_models is None else list(self.allowed_models),
            "lifetime": self.lifetime,
        }


DEFAULT_GRANT = KeyGrant()


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


def create(
    dsn: str, project: str, schema: str | None = None, grant: KeyGrant = DEFAULT_GRANT
) -> str:
    """Creates a key for the project of that name, and the project if it does not exist. `schema`:
    the setting `database_schema`. The key is returned here only: it cannot be read from the
    database later."""
    key = new_key()
    _store(dsn, project, key, schema, grant)
    return key


def _store(
    dsn: str, project: str, key: str, schema: str | None, grant: KeyGrant = DEFAULT_GRANT
) -> None:
    # commands import this module, and the rows of these statements import pydantic
    from models.db.queries.api_keys import INSERT_API_KEY, INSERT_PROJECT

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
                **grant.values,
            },
        )
