"""An act and its entry in the audit log are one transaction: the one home of this rule for whatever
the API, the console and commands do with the same function.

A statement that adds its entry itself (`recorded` in models/db/queries/audit.py) needs nothing of
this file.
"""

from models.db.database import Connection, Parameters, execute, fetch
from models.db.queries.audit import RECORD, AuditEntry
from models.db.statement import Query, RowT, Statement


async def record(connection: Connection, entry: AuditEntry) -> None:
    """Adds an entry, in the transaction of the act."""
    await execute(connection, RECORD, entry.values())


async def act(
    connection: Connection,
    query: Query[RowT],
    values: Parameters,
    entry: AuditEntry,
    recording: Statement = RECORD,
) -> list[RowT]:
    """Runs the statement, and adds the entry with `recording` if it returns a row: without one,
    nothing was changed. In one transaction, or in that of the caller."""
    async with connection.transaction():
        rows = await fetch(connection, query, values)
        if rows:
            await execute(connection, recording, {**values, **entry.values()})
    return rows
