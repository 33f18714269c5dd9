"""What an operator does with API keys."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self
from uuid import UUID

from cli.errors import RequestRefused
from cli.operations.audit_entries import audited, operator
from cli.operations.queries import Database
from cli.output import clean
from models.db.queries import organization
from models.db.queries.audit import AuditEntry
from models.db.queries.organization import KeyDetails
from models.db.sync import fetch_sync
from models.ids import new_uuid
from models.keys import KEY_PREFIX_LENGTH, hash_key, new_key
from models.operator.lookup import id_prefix
from models.operator.text import format_time


@dataclass(frozen=True, slots=True)
class ListedKey:
    """An API key. `prefix`: its first characters; the rest is not stored."""

    id: UUID
    prefix: str
    project: str
    name: str | None
    scopes: list[str]
    allowed_models: list[str] | None
    """null: all that its project may use"""
    created_at: datetime
    last_used_at: datetime | None
    """to the minute"""
    expires_at: datetime | None
    revoked_at: datetime | None
    state: str
    """valid, revoked, expired, or archived: its project is"""
    created_seconds: float
    """since then"""
    unused_seconds: float | None
    """since it was last used; null: never"""

    @classmethod
    def from_row(cls, row: KeyDetails) -> Self:
        """The fact of a row."""
        used = row.last_used_at
        return cls(
            id=row.id,
            prefix=row.prefix,
            project=row.project,
            name=row.name,
            scopes=row.scopes,
            allowed_models=row.allowed_models,
            created_at=row.created_at,
            last_used_at=used,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            state=row.state,
            created_seconds=round((row.now - row.created_at).total_seconds(), 3),
            unused_seconds=None if used is None else round((row.now - used).total_seconds(), 3),
        )


@dataclass(frozen=True, slots=True)
class RotatedKey:
    """A key that replaces another one."""

    key: str
    """shown here only"""
    replaced: ListedKey
    valid_until: datetime
    """of the replaced one"""


def list_keys(database: Database, project: str | None) -> list[ListedKey]:
    """All API keys, or those of one project; those that are not revoked first."""
    rows = fetch_sync(database, organization.LIST_KEYS, {"project": project})
    return [ListedKey.from_row(row) for row in rows]


def revoke_key(database: Database, name: str) -> ListedKey:
    """Revokes the key with this id, or beginning of one, or these first characters, or this key.

    Raises RequestRefused if there is none, more than one, or it is revoked already.
    """
    key = _find_unrevoked(database, name)
    with audited(database, _entry("revoke", key)):
        fetch_sync(database, organization.REVOKE_KEY, {"id": key.id})
    return ListedKey.from_row(key)


def rotate_key(database: Database, name: str, overlap: timedelta) -> RotatedKey:
    """Makes a key that may do what this one may do, which stays valid for `overlap`. `name` and
    errors as for `revoke_key`; also for a key that has expired."""
    replaced = _find_unrevoked(database, name)
    if not replaced.is_valid:
        raise RequestRefused(f"the key {replaced.prefix}… is not valid any more; make another")
    key = new_key()
    values = {
        "id": replaced.id,
        "new_id": new_uuid(),
        "prefix": key[:KEY_PREFIX_LENGTH],
        "hash": hash_key(key),
        "overlap": overlap,
    }
    with audited(database, _entry("rotate", replaced)):
        fetch_sync(database, organization.ROTATE_KEY, values)
    until = replaced.now + overlap
    if replaced.expires_at is not None:
        until = min(until, replaced.expires_at)
    return RotatedKey(key, ListedKey.from_row(replaced), until)


def _entry(verb: str, key: KeyDetails) -> AuditEntry:
    return AuditEntry(operator(), f"key.{verb}", key.prefix, project=key.project)


def _find_unrevoked(database: Database, name: str) -> KeyDetails:
    values = {"name": name[:KEY_PREFIX_LENGTH], "hash": hash_key(name), "digits": id_prefix(name)}
    if len(name) > KEY_PREFIX_LENGTH:
        values["name"] = None  # the whole key, by its hash, or an id
    found = fetch_sync(database, organization.FIND_KEYS, values)
    unrevoked = [key for key in found if key.revoked_at is None]
    shown = clean(name[:KEY_PREFIX_LENGTH])
    revoked_at = found[0].revoked_at if found and not unrevoked else None
    if revoked_at is not None:
        raise RequestRefused(f"the key {shown} was revoked at {format_time(revoked_at)}")
    if not unrevoked:
        raise RequestRefused(f"there is no key {shown}; `backburner keys list` lists them")
    if len(unrevoked) > 1:
        raise RequestRefused(f"{shown} are the first characters of several keys; use an id")
    return unrevoked[0]
