"""The audit log, as commands write and read it."""

import getpass
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cli.errors import RequestRefused
from models.db.database import Connection, fetch
from models.db.queries import audit
from models.db.queries.audit import Actor, ActorKind, AuditRow
from models.time_text import format_time

_PAGE = 1_000
"""Entries that one statement of an export reads."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries are wanted; None: any."""

    since: timedelta | None = None
    project: str | None = None
    action: str | None = None

    @property
    def values(self) -> dict[str, object]:
        """The parameters of the statements."""
        return {"since": self.since, "project": self.project, "action": self.action}


def operator() -> Actor:
    """Who runs this command: the user of the operating system, and by whom `sudo` was called."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    caller = os.environ.get("SUDO_USER")  # noqa: TID251 - set by sudo
    name = f"{user} (sudo by {caller})" if caller and caller != user else user
    return Actor(ActorKind.OPERATOR, os_user=name, address=socket.gethostname())


async def list_entries(
    connection: Connection, wanted: AuditFilter, limit: int, before: str | None
) -> list[AuditRow]:
    """The newest entries, at most `limit`; those before the entry `before` if it is given. Raises
    RequestRefused if there is no such entry."""
    at, last = datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1)
    if before is not None:
        position = await _find(connection, before)
        at, last = position.at, position.id
    values = wanted.values | {"at": at, "id": last, "max_rows": limit}
    return await fetch(connection, audit.LIST, values)


async def export_entries(connection: Connection, wanted: AuditFilter) -> AsyncIterator[AuditRow]:
    """All entries, the oldest first."""
    at, last = datetime.min.replace(tzinfo=UTC), UUID(int=0)
    while True:
        values = wanted.values | {"at": at, "id": last, "max_rows": _PAGE}
        rows = await fetch(connection, audit.EXPORT, values)
        for row in rows:
            yield row
        if len(rows) < _PAGE:
            return
        at, last = rows[-1].at, rows[-1].id


def as_object(row: AuditRow) -> dict[str, Any]:
    """An entry for programs: without what it does not have."""
    fields = asdict(row) | {"at": format_time(row.at), "id": str(row.id)}
    if row.key_id is not None:
        fields["key_id"] = str(row.key_id)
    return {name: value for name, value in fields.items() if value not in (None, {})}


async def _find(connection: Connection, name: str) -> AuditRow:
    try:
        rows = await fetch(connection, audit.FIND, {"id": UUID(name)})
    except ValueError:
        rows = []
    if not rows:
        raise RequestRefused(f"there is no entry {name[:40]} in the audit log")
    return rows[0]
