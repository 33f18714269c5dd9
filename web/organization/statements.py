"""What the parts of the admin API have in common: pages of rows, and entries in the audit log."""

from collections.abc import Mapping
from typing import Any, TypeVar

from models.db.database import Connection, Pool, execute, fetch_idempotent
from models.db.queries.audit import RECORD, Actor, AuditEntry
from models.db.statement import Query
from web.http.params import Paging

RowT = TypeVar("RowT")


async def fetch_page(
    pool: Pool, query: Query[RowT], paging: Paging, prefix: str, values: Mapping[str, object]
) -> list[RowT]:
    """The rows of a page and one more, if there is one. `prefix`: of the ids in the list. Raises
    InvalidRequest for a position that is no such id."""
    position = {"after": paging.after_id(prefix), "max_rows": paging.row_limit}
    return await fetch_idempotent(pool, query, {**position, **values})


async def record(
    connection: Connection,
    actor: Actor,
    action: str,
    name: str,
    details: Mapping[str, Any] | None = None,
    *,
    project: str,
) -> None:
    """Adds an entry to the audit log, in the transaction of what it tells of. `project`: the name
    of the project that it concerns."""
    entry = AuditEntry(actor, action, name, project=project, details=dict(details or {}))
    await execute(connection, RECORD, entry.values())
