"""SQL that only tests need: read rows that no statement of the product selects, change rows that no
product code changes."""

from collections.abc import Iterator, Mapping
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


def rows_read(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows of `responses` each node of an analyzed plan read."""
    if plan.get("Relation Name") == "responses" or "ix_responses" in plan.get("Index Name", ""):
        rows = plan.get("Actual Rows", 0) + plan.get("Rows Removed by Filter", 0)
        yield rows * plan.get("Actual Loops", 1)
    for child in plan.get("Plans", []):
        yield from rows_read(child)
