"""API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from models.config.addresses import DEFAULT_SCHEMA
from models.db.search_path import set_search_path
from models.db.sync import execute_sync, fetch_sync
from models.ids import new_uuid
from models.projects.scopes import DEFAULT_SCOPES, Scope

if TYPE_CHECKING:
    from models.db.queries.audit import Actor, AuditEntry

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


class ProjectArchived(Exception):
    """A project that was archived gets no key."""


def new_key() -> str:
    """A new key: `bb-` and 43 URL-safe characters (256 random bits)."""
    return f"bb-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> bytes:
    """The SHA-256 of a key, which is stored and compared. A key has 256 random bits, so a hash
    without salt is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def bootstrap(dsn: str, key: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Makes `key` valid for the project `default`; creates both if they do not exist. `schema`: the
    setting `database_schema`. Idempotent."""
    _store(dsn, "default", key, schema)


def create(
    dsn: str,
    project: str,
    schema: str = DEFAULT_SCHEMA,
    grant: KeyGrant = DEFAULT_GRANT,
    actor: "Actor | None" = None,
) -> str:
    """Creates a key for the project of that name, and the project if it does not exist. `schema`:
    the setting `database_schema`. The audit log says that `actor` did it. The key is returned here
    only: it cannot be read from the database later. Raises ProjectArchived."""
    key = new_key()
    if not _store(dsn, project, key, schema, grant, actor):
        raise ProjectArchived
    return key


def _store(
    dsn: str,
    project: str,
    key: str,
    schema: str,
    grant: KeyGrant = DEFAULT_GRANT,
    actor: "Actor | None" = None,
) -> bool:
    """Returns False if the key exists already, or the project was archived."""
    # commands import this module, and the rows of these statements import pydantic
    from models.db.queries.api_keys import INSERT_API_KEY, INSERT_PROJECT
    from models.db.queries.audit import RECORD, AuditEntry

    with psycopg.connect(dsn, target_session_attrs="primary") as connection:
        connection.execute(set_search_path(schema))
        made = fetch_sync(connection, INSERT_PROJECT, {"id": new_uuid(), "name": project})
        stored = fetch_sync(
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
        if made and actor is not None:
            entry = AuditEntry(actor, "project.create", project, project=project)
            execute_sync(connection, RECORD, entry.values())
        if stored and actor is not None:
            execute_sync(connection, RECORD, creation_entry(actor, key, project, grant).values())
        return bool(stored)


def creation_entry(actor: "Actor", key: str, project: str, grant: KeyGrant) -> "AuditEntry":
    """What the audit log says of a new key."""
    from models.db.queries.audit import AuditEntry

    details: dict[str, object] = {"scopes": sorted(scope.value for scope in grant.scopes)}
    return AuditEntry(
        actor, "key.create", key[:KEY_PREFIX_LENGTH], project=project, details=details
    )
