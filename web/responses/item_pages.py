"""Lists of items, read in pages that are bounded in bytes (docs/limits.md)."""

from typing import Any

from models.db.database import Pool, fetch_idempotent
from models.db.queries.common import PagedItem
from models.db.statement import Query
from models.turns import pause_if_large
from models.wire.events import Item
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.http.shares import Held

_MAX_SIZE = 8 * 1024 * 1024
"""The size of a page (models/wire/size.py)."""
_NO_LIMIT = 2**62


class ItemReader:
    """Reads stored items. An item may be as large as a body: one that is larger than a page counts
    among the large bodies until it is sent, so that a process never holds many (ADR 0039)."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def page(
        self, query: Query[PagedItem], values: dict[str, Any], paging: Paging, held: Held
    ) -> dict[str, Any]:
        """A page as OpenAI's list object: at least one item if there is any, then as many as the
        page may have. `query`: one of `item_pages`. `held`: what the answer has of the process's
        memory. Raises ShareUsedUp or Unavailable."""
        values = {**values, "after": paging.after, "max_size": _MAX_SIZE}
        rows = await fetch_idempotent(self._pool, query, {**values, "limit": paging.row_limit})
        items = [row.payload for row in rows if row.payload is not None][: paging.limit]
        if not rows or items:
            return list_envelope(items, has_more=len(rows) > len(items))
        first = await self._large(query, {**values, "limit": 1}, rows[0].total, held)
        if first is None:
            return list_envelope([])
        envelope = list_envelope([{"id": first.id}], has_more=len(rows) > 1)
        return envelope | {"data": [first.payload]}

    async def item(
        self, query: Query[PagedItem], values: dict[str, Any], held: Held
    ) -> Item | None:
        """One item, as an answer has it; None if there is none. `held`: as for `page`."""
        rows = await fetch_idempotent(self._pool, query, {**values, "max_size": _MAX_SIZE})
        if not rows or rows[0].payload is not None:
            return rows[0].payload if rows else None
        large = await self._large(query, values, rows[0].total, held)
        return None if large is None else large.payload

    async def _large(
        self, query: Query[PagedItem], values: dict[str, Any], size: int, held: Held
    ) -> PagedItem | None:
        """The row of an item of so many bytes. Its payload is not decoded: that and encoding it
        again would take part of a second, in which nothing else is served."""
        await held.grow(size)
        values = {**values, "max_size": _NO_LIMIT}
        rows = await fetch_idempotent(self._pool, query, values, size=size, keeps_json=True)
        await pause_if_large(size)
        return rows[0] if rows else None
