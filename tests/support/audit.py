"""The audit log of a deployment."""

from typing import Any

import psycopg
from psycopg.rows import dict_row

from models.db.queries.audit import Actor, ActorKind, AuditEntry
from tests.support.api import JSON
from tests.support.stack import Stack

AUDITED = AuditEntry(Actor(ActorKind.SERVER), "response.delete").values()
"""The audit parameters of a statement that a test runs itself. All its entries are one."""


async def audit_entries(stack: Stack, **columns: Any) -> list[JSON]:
    """The entries with these values, the oldest first."""
    condition = " AND ".join(f"{name} = %({name})s" for name in columns) or "true"
    async with (
        await psycopg.AsyncConnection.connect(stack.dsn, row_factory=dict_row) as connection,
        await connection.execute(
            f"SELECT * FROM audit WHERE {condition} ORDER BY at, id", columns
        ) as cursor,
    ):
        return await cursor.fetchall()
