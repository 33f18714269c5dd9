"""The audit log, as commands write and read it."""

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cli.errors import RequestRefused
from models.db.queries import audit
from models.db.queries.audit import (
    RECORD,
    RECORD_ABOUT_RESPONSE,
    Actor,
    ActorKind,
    AuditEntry,
    AuditRow,
)
from models.db.sync import SyncConnection, execute_sync, fetch_sync
from models.ids import response_id
from models.operator.text import format_time

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


@contextmanager
def audited(connection: SyncConnection, entry: AuditEntry) -> Iterator[None]:
    """One transaction: what is changed in it, and the entry about it. An error undoes both."""
    with connection.transaction():
        yield
        record_audit(connection, entry)


def record_audit(connection: SyncConnection, entry: AuditEntry) -> None:
    """Adds an entry, in the transaction of the action if there is one."""
    execute_sync(connection, RECORD, entry.values())


def record_response_action(
    connection: SyncConnection, action: str, response: UUID, outcome: str
) -> None:
    """Adds an entry: the operator's `action` on a response, in the transaction of the action."""
    entry = AuditEntry(operator(), f"response.{action}", response_id(response), outcome)
    execute_sync(connection, RECORD_ABOUT_RESPONSE, entry.values() | {"response": response})


def list_entries(
    connection: SyncConnection, wanted: AuditFilter, limit: int, before: str | None
) -> list[AuditRow]:
    """The newest entries, at most `limit`; those before the entry `before` if it is given. Raises
    RequestRefused if there is no such entry."""
    at, last = datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1)
    if before is not None:
        position = _find(connection, before)
        at, last = position.at, position.id
    values = wanted.values | {"at": at, "id": last, "max_rows": limit}
    return fetch_sync(connection, audit.LIST, values)


def export_entries(connection: SyncConnection, wanted: AuditFilter) -> Iterator[AuditRow]:
    """All entries, the oldest first."""
    at, last = datetime.min.replace(tzinfo=UTC), UUID(int=0)
    while True:
        values = wanted.values | {"at": at, "id": last, "max_rows": _PAGE}
        rows = fetch_sync(connection, audit.EXPORT, values)
        yield from rows
        if len(rows) < _PAGE:
            return
        at, last = rows[-1].at, rows[-1].id


def as_object(row: AuditRow) -> dict[str, Any]:
    """An entry for programs: without what it does not have."""
    fields = asdict(row) | {"at": format_time(row.at), "id": str(row.id)}
    if row.key_id is not None:
        fields["key_id"] = str(row.key_id)
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _find(connection: SyncConnection, name: str) -> AuditRow:
    try:
        rows = fetch_sync(connection, audit.FIND, {"id": UUID(name)})
    except ValueError:
        rows = []
    if not rows:
        raise RequestRefused(f"there is no entry {name[:40]} in the audit log")
    return rows[0]
