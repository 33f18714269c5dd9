"""What an operator does with API keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self
from uuid import UUID

from cli.errors import RequestRefused
from cli.output import GREEN, GREY, clean, fitted_table, paint
from features.operator.audit_entries import operator
from features.operator.filter import id_prefix
from features.operator.rows import fact
from features.tenants import service
from models.db.database import Connection, fetch
from models.db.queries import organization
from models.db.queries.organization import KeyDetails
from models.keys import KEY_PREFIX_LENGTH, KeyGrant, hash_key
from models.time_text import format_date, format_seconds, format_time

_SHORT_ID = 18
"""Characters of an id in a narrow table."""


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
        return fact(
            cls,
            row,
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


async def list_keys(database: Connection, project: str | None) -> list[ListedKey]:
    """All API keys, or those of one project; those that are not revoked first."""
    rows = await fetch(database, organization.LIST_KEYS, {"project": project})
    return [ListedKey.from_row(row) for row in rows]


async def create_key(database: Connection, project: str, grant: KeyGrant) -> str:
    """The value of a new key of the project of that name, which is made if there is none. Raises
    RequestRefused."""
    actor = operator()
    async with database.transaction():
        found = await service.find_or_create_project(database, project, actor)
        made = await service.create_key(database, found, grant, actor)
    if made is None:
        raise RequestRefused(f"the project {project} was deleted")
    return made[1]


async def revoke_key(database: Connection, name: str) -> ListedKey:
    """Revokes the key with this id, or beginning of one, or these first characters, or this key.

    Raises RequestRefused if there is none, more than one, or it is revoked already.
    """
    key = await _find_unrevoked(database, name)
    await service.revoke_key(database, key, operator())
    return ListedKey.from_row(key)


async def rotate_key(database: Connection, name: str, overlap: timedelta) -> RotatedKey:
    """Makes a key that may do what this one may do, which stays valid for `overlap`. `name` and
    errors as for `revoke_key`; also for a key that has expired."""
    replaced = await _find_unrevoked(database, name)
    if not replaced.is_valid:
        raise RequestRefused(f"the key {replaced.prefix}… is not valid any more; make another")
    value = await service.rotate_key(database, replaced, overlap, operator())
    until = replaced.now + overlap
    if replaced.expires_at is not None:
        until = min(until, replaced.expires_at)
    return RotatedKey(value, ListedKey.from_row(replaced), until)


async def _find_unrevoked(database: Connection, name: str) -> KeyDetails:
    values = {"name": name[:KEY_PREFIX_LENGTH], "hash": hash_key(name), "digits": id_prefix(name)}
    if len(name) > KEY_PREFIX_LENGTH:
        values["name"] = None  # the whole key, by its hash, or an id
    found = await fetch(database, organization.FIND_KEYS, values)
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


def as_table(facts: Sequence[ListedKey]) -> str:
    """One line per key."""
    if not facts:
        return "there is no key"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                f"{clean(key.prefix)}…",
                str(key.id)[:_SHORT_ID] if short else str(key.id),
                clean(key.project),
                clean(key.name or ""),
                ",".join(key.scopes),
                _ago(key.created_seconds) if short else format_date(key.created_at),
                _last_use(key, short=short),
                _validity(key, short=short),
            )
            for key in facts
        ]

    head = ("KEY", "ID", "PROJECT", "NAME", "SCOPES", "CREATED", "LAST USED", "STATE")
    return fitted_table(head, rows, ["PROJECT", "NAME"])


def _last_use(key: ListedKey, *, short: bool) -> str:
    if key.last_used_at is None or key.unused_seconds is None:
        return "never"
    return _ago(key.unused_seconds) if short else format_date(key.last_used_at)


def _validity(key: ListedKey, *, short: bool) -> str:
    if key.state == "valid":
        until = "" if short or key.expires_at is None else f" until {format_date(key.expires_at)}"
        return paint(f"valid{until}", GREEN)
    if key.revoked_at is not None and not short:
        return paint(f"revoked {format_date(key.revoked_at)}", GREY)
    return paint(key.state, GREY)


def _ago(seconds: float) -> str:
    return f"{format_seconds(seconds)} ago"
