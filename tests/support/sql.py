"""SQL that only tests need: read rows that no statement of the product selects, change rows that no
product code changes."""

from collections.abc import Mapping
from typing import Any

from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from models.db.database import Connection, Pool

Record = dict[str, Any]
"""A row by column name."""


async def run_sql(
    on: Pool | Connection, text: str, parameters: Mapping[str, object] | None = None
) -> list[Record]:
    """Runs one statement in psycopg's form (`%(name)s`); its rows, if it returns any."""
    if isinstance(on, AsyncConnectionPool):
        async with on.connection() as connection:
            return await run_sql(connection, text, parameters)
    async with on.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(text.encode(), parameters, binary=True)
        return await cursor.fetchall() if cursor.description else []
