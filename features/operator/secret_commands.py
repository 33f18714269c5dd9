"""`backburner secrets rotate`: seals again what an older key has sealed, so that this key can be
removed.

Each row is replaced by itself, while the deployment runs. An interrupted run is continued by the
next one, which finds what is left.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import typer

from cli.errors import CommandFailed
from cli.options import AsJson, Data
from cli.output import print_status
from features.operator.connection import EXIT_CODES_HELP, EXIT_REFUSED, operator, run, show

if TYPE_CHECKING:
    from uuid import UUID

    from features.operator.rotation_queries import SealedItem, SealedRow
    from models.db.connection import Connection
    from models.db.statement import Query
    from models.secrets import Sealer, TokenKind

app = typer.Typer(help="What is sealed at rest.", no_args_is_help=True)

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
    schedules: int = 0
    items: int = 0
    """Rows that were sealed again."""
    unreadable: int = 0
    """Rows that stay as they are: no configured key opens them."""


@app.callback()
def _secrets() -> None:
    """What is sealed at rest."""


# Commands import when they run, as in cli/main.py.
@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_secrets(as_json: AsJson = False, data: Data = None) -> None:
    """Seal everything again with the first key of BACKBURNER_SECRET_KEYS.

    The other keys of the list open what they have sealed. Restart web and workers with the new list
    first (docs/security.md). The command may be interrupted and repeated.
    """
    from cli.settings import secret_keys_of
    from models.secrets import Sealer, key_id_of, parse_keys

    async def rotate(database: "Connection") -> Rotation:
        keys = parse_keys(secret_keys_of(data) or "")
        if not keys:
            raise CommandFailed("BACKBURNER_SECRET_KEYS is not set")
        return await _audited(database, Sealer(keys), key_id_of(keys[0]))

    done = run(data, rotate)
    show(done, _text, as_json=as_json)
    if done.unreadable:
        print_status(
            f"backburner: no configured key opens {done.unreadable} of them; they stay as they are"
        )
        raise typer.Exit(EXIT_REFUSED)


def _text(done: Rotation) -> str:
    return (
        f"sealed again with the key {done.key_id}: {done.credentials} credentials of open "
        f"responses, {done.webhooks} webhooks, {done.items} items, {done.schedules} schedules"
    )


async def _audited(database: "Connection", sealer: "Sealer", key_id: str) -> Rotation:
    """As `_rotate`; the audit log has that it begins, and what it has done."""
    from features.audit import record
    from models.db.queries.audit import AuditEntry

    await record(database, AuditEntry(operator(), "secrets.rotate", key_id, "requested"))
    done = await _rotate(database, sealer, key_id)
    details = {"sealed": done.credentials + done.webhooks + done.schedules + done.items}
    details["unreadable"] = done.unreadable
    await record(database, AuditEntry(operator(), "secrets.rotate", key_id, details=details))
    return done


async def _rotate(database: "Connection", sealer: "Sealer", key_id: str) -> Rotation:
    """Seals everything in the database with the key `key_id`, the first one of the sealer."""
    from features.operator import rotation_queries as sealed

    run = _Resealing(database, sealer, key_id)
    credentials = await run.reseal_rows(sealed.CREDENTIALS, sealed.RESEAL_CREDENTIALS)
    webhooks = await run.reseal_rows(sealed.ENDPOINTS, sealed.RESEAL_ENDPOINT)
    schedules = await run.reseal_rows(sealed.SCHEDULES, sealed.RESEAL_SCHEDULE)
    items = await run.reseal_items(sealed.ITEMS, sealed.RESEAL_ITEM)
    items += await run.reseal_items(sealed.ORIGINS, sealed.RESEAL_ORIGIN)
    return Rotation(key_id, credentials, webhooks, schedules, items, run.unreadable)


@dataclass(slots=True)
class _Resealing:
    """One run. Rows that are deleted or changed meanwhile are left out."""

    database: "Connection"
    sealer: "Sealer"
    key_id: str
    unreadable: int = 0
    """Rows that no configured key opens."""

    async def reseal_rows(self, select: "Query[SealedRow]", update: "Query[UUID]") -> int:
        """Seals the rows that have another key; returns how many."""
        from models.db.database import fetch
        from models.secrets import Sealed, Unreadable

        after, resealed = None, 0
        while True:
            values = {"key_id": self.key_id, "after": after, "max_rows": _BATCH}
            rows = await fetch(self.database, select, values)
            for row in rows:
                try:
                    opened = self.sealer.open(row.id, Sealed(row.key_id, row.sealed))
                except Unreadable:
                    self.unreadable += 1
                    continue
                again = self.sealer.seal(row.id, opened)
                new = {"id": row.id, "key_id": again.key_id, "sealed": again.sealed}
                old = {"old_key_id": row.key_id, "old_sealed": row.sealed}
                resealed += len(await fetch(self.database, update, new | old))
            if len(rows) < _BATCH:
                return resealed
            after = rows[-1].id

    async def reseal_items(self, select: "Query[SealedItem]", update: "Query[int]") -> int:
        """As `reseal_rows`, for the tokens in items."""
        from features.operator.rotation_queries import LAST_ITEM
        from models.db.database import fetch
        from models.secrets import Unreadable

        resealed = 0
        [last] = await fetch(self.database, LAST_ITEM, {})
        prefixes = {"prefix": "bbs1.", "own_prefix": f"bbs1.{self.key_id}."}
        for after in range(0, last, _RANGE):
            values = {"after": after, "last": after + _RANGE, **prefixes}
            for row in await fetch(self.database, select, values):
                kind = cast("TokenKind", row.type)
                try:
                    opened = self.sealer.open_token(kind, row.project_id, row.token)
                except Unreadable:
                    self.unreadable += 1
                    continue
                token = self.sealer.seal_token(kind, row.project_id, opened)
                new = {"id": row.id, "token": token, "old_token": row.token}
                resealed += len(await fetch(self.database, update, new))
        return resealed
