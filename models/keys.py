"""API keys. Only a key's SHA-256 and its first characters are stored."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb

from models.config.addresses import CELL_NAME, DEFAULT_SCHEMA
from models.db.queries import organization
from models.db.sync import fetch_sync, set_search_path
from models.ids import new_uuid
from models.projects.scopes import DEFAULT_SCOPES, Scope

KEY_PREFIX_LENGTH = 8
"""How many of a key's first characters are stored, to recognise it by. Those of a cell come
first."""
_KEY_OF_CELL = re.compile(f"bb-({CELL_NAME})-[A-Za-z0-9_-]{{43}}")
"""A key without a cell is shorter, so none is taken for one of a cell."""
MAX_PREFIX_LENGTH = KEY_PREFIX_LENGTH + 13
"""How many of a key's first characters are stored at most."""
DEFAULT_PROJECT = "default"
"""The project of the first key. It cannot be archived, so that admins keep theirs."""
CACHE_SECONDS = 5.0
"""For how long a web process caches a valid key. It notices most changes earlier: with its next
heartbeat (models/ownership/lease.py)."""


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
            "created_by": None,
            "service_account": None,
        }


DEFAULT_GRANT = KeyGrant()


def new_key(cell: str = "") -> str:
    """A new key: `bb-`, the name of the cell and `-` if it has one, and 43 URL-safe characters (256
    random bits)."""
    return f"bb-{cell}{'-' if cell else ''}{secrets.token_urlsafe(32)}"


def cell_of_key(key: str) -> str:
    """The cell that a key names; empty: none."""
    found = _KEY_OF_CELL.fullmatch(key)
    return found[1] if found else ""


def key_prefix(key: str) -> str:
    """The first characters of a key, which may be shown."""
    cell = cell_of_key(key)
    return key[: KEY_PREFIX_LENGTH + (len(cell) + 1 if cell else 0)]


def hash_key(key: str) -> bytes:
    """The SHA-256 of a key, which is stored and compared. A key has 256 random bits, so a hash
    without salt is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def stored_value(key: str) -> dict[str, object]:
    """What is stored of a key, for the statements that insert one."""
    return {"prefix": key_prefix(key), "hash": hash_key(key)}


def bootstrap(
    dsn: str,
    key: str,
    schema: str = DEFAULT_SCHEMA,
    project: str = DEFAULT_PROJECT,
    grant: KeyGrant = DEFAULT_GRANT,
) -> None:
    """Makes `key` valid for the project of that name; creates both if they do not exist. `schema`:
    the setting `database_schema`. Idempotent; for the start of a deployment. Blocks."""
    with psycopg.connect(dsn, target_session_attrs="primary") as connection:
        connection.execute(set_search_path(schema))
        named = {"name": project, "digits": None}
        made = {"id": new_uuid(), **named, "weight": 1, "policy": Jsonb({})}
        fetch_sync(connection, organization.CREATE_PROJECT, made)
        found = fetch_sync(connection, organization.FIND_PROJECTS, named)
        values = {"id": new_uuid(), "project": found[0].id, **stored_value(key), **grant.values}
        fetch_sync(connection, organization.CREATE_KEY, values)
