"""Seals again what an older key has sealed, so that this key can be removed.

Each row is replaced by itself, while the deployment runs. An interrupted run is continued by the
next one, which finds what is left.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from features.audit import record
from features.operator.audit_entries import operator
from models.db.database import Connection, fetch
from models.db.queries import sealed
from models.db.queries.audit import AuditEntry
from models.db.statement import Query
from models.secrets import Sealed, Sealer, TokenKind, Unreadable

_BATCH = 500
"""Credentials that are read with one statement."""
_RANGE = 20_000
"""Ids of items that are read with one statement."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What one run has done."""

    key_id: str
    """The key with which everything is sealed now."""
    credentials: int = 0
    """of open responses"""
    webhooks: int = 0
    items: int = 0
    """Rows that were sealed again."""
    unreadable: int = 0
    """Rows that stay as they are: no configured key opens them."""


async def audited_rotation(database: Connection, sealer: Sealer, key_id: str) -> Rotation:
    """As `rotate`; the audit log has that it begins, and what it has done."""
    await record(database, AuditEntry(operator(), "secrets.rotate", key_id, "requested"))
    done = await rotate(database, sealer, key_id)
    details = {"sealed": done.credentials + done.webhooks + done.items}
    details["unreadable"] = done.unreadable
    await record(database, AuditEntry(operator(), "secrets.rotate", key_id, details=details))
    return done


async def rotate(database: Connection, sealer: Sealer, key_id: str) -> Rotation:
    """Seals everything in the database with the key `key_id`, the first one of the sealer."""
    done = Rotation(key_id)
    async for is_resealed in _rows(
        database, sealer, key_id, sealed.CREDENTIALS, sealed.RESEAL_CREDENTIALS
    ):
        done = _count(done, "credentials", is_resealed=is_resealed)
    async for is_resealed in _rows(
        database, sealer, key_id, sealed.ENDPOINTS, sealed.RESEAL_ENDPOINT
    ):
        done = _count(done, "webhooks", is_resealed=is_resealed)
    for select, update in (
        (sealed.ITEMS, sealed.RESEAL_ITEM),
        (sealed.ORIGINS, sealed.RESEAL_ORIGIN),
    ):
        async for is_resealed in _items(database, sealer, key_id, select, update):
            done = _count(done, "items", is_resealed=is_resealed)
    return done


def _count(done: Rotation, what: str, *, is_resealed: bool) -> Rotation:
    if not is_resealed:
        return replace(done, unreadable=done.unreadable + 1)
    return replace(done, **{what: getattr(done, what) + 1})


async def _rows(
    database: Connection,
    sealer: Sealer,
    key_id: str,
    select: Query[sealed.SealedRow],
    update: Query[UUID],
) -> AsyncIterator[bool]:
    """For each row that has another key: whether it could be opened. Rows that were deleted or
    changed meanwhile are left out."""
    after = None
    while True:
        rows = await fetch(database, select, {"key_id": key_id, "after": after, "max_rows": _BATCH})
        for row in rows:
            try:
                opened = sealer.open(row.id, Sealed(row.key_id, row.sealed))
            except Unreadable:
                yield False
                continue
            again = sealer.seal(row.id, opened)
            new = {"id": row.id, "key_id": again.key_id, "sealed": again.sealed}
            old = {"old_key_id": row.key_id, "old_sealed": row.sealed}
            if await fetch(database, update, new | old):
                yield True
        if len(rows) < _BATCH:
            return
        after = rows[-1].id


async def _items(
    database: Connection,
    sealer: Sealer,
    key_id: str,
    select: Query[sealed.SealedItem],
    update: Query[int],
) -> AsyncIterator[bool]:
    """As `_rows`, for the tokens in items."""
    [last] = await fetch(database, sealed.LAST_ITEM, {})
    prefixes = {"prefix": "bbs1.", "own_prefix": f"bbs1.{key_id}."}
    for after in range(0, last, _RANGE):
        values = {"after": after, "last": after + _RANGE, **prefixes}
        for row in await fetch(database, select, values):
            kind = cast("TokenKind", row.type)
            try:
                opened = sealer.open_token(kind, row.project_id, row.token)
            except Unreadable:
                yield False
                continue
            token = sealer.seal_token(kind, row.project_id, opened)
            new = {"id": row.id, "token": token, "old_token": row.token}
            if await fetch(database, update, new):
                yield True
