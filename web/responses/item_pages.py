"""Lists of items, read in pages that are bounded in bytes (docs/limits.md)."""

import asyncio
from typing import Any

from models.db.database import Pool, fetch_idempotent
from models.db.queries.common import PagedItem
from models.db.statement import Query
from models.wire.events import Item
from web.http.json_responses import list_envelope
from web.http.params import Paging

_MAX_SIZE = 8 * 1024 * 1024
"""The size of a page (models/wire/size.py)."""
_NO_LIMIT = 2**62


class ItemReader:
    """Reads stored items. An item may be as large as a body: of those that are larger than a page
    one is read at a time, so that a process never holds many of them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._large_reads = asyncio.Semaphore(1)

    async def page(
        self, query: Query[PagedItem], values: dict[str, Any], paging: Paging
    ) -> dict[str, Any]:
        """A page as OpenAI's list object: at least one item if there is any, then as many as the
        page may have. `query`: one of `item_pages`."""
        values = {**values, "after": paging.after, "max_size": _MAX_SIZE}
        rows = await self._fetch(query, {**values, "limit": paging.row_limit})
        items = [row.payload for row in rows if row.payload is not None][: paging.limit]
        if rows and not items:
            first = await self._large(query, {**values, "limit": 1})
            items = [] if first is None else [first]
        return list_envelope(items, has_more=len(rows) > len(items))

    async def item(self, query: Query[PagedItem], values: dict[str, Any]) -> Item | None:
        """One item; None if there is none."""
        rows = await self._fetch(query, {**values, "max_size": _MAX_SIZE})
        if not rows:
            return None
        return rows[0].payload or await self._large(query, values)

    async def _large(self, query: Query[PagedItem], values: dict[str, Any]) -> Item | None:
        async with self._large_reads:
            rows = await self._fetch(query, {**values, "max_size": _NO_LIMIT})
        return rows[0].payload if rows else None

    async def _fetch(self, query: Query[PagedItem], values: dict[str, Any]) -> list[PagedItem]:
        return await fetch_idempotent(self._pool, query, values)
