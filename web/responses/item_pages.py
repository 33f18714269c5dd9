"""Lists of items, read in pages that are bounded in bytes (docs/limits.md)."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from models.db.database import Pool, fetch_idempotent
from models.db.queries.common import PagedItem
from models.db.statement import Query
from models.files.response_images import ResponseImages
from models.load.budget import Reservation
from models.load.pacing import pause_if_large
from models.wire.image_marks import may_have_marks
from web.http.body import UNCOUNTED_BYTES
from web.http.json_responses import list_envelope
from web.http.params import Paging

_MAX_SIZE = 8 * 1024 * 1024
"""The size of a page (models/wire/json_input.py)."""


class ItemReader:
    """Reads stored items. An item may be as large as a body: a page of more than 64 KiB counts
    among the large bodies until it is sent, so that a process never holds many (ADR 0039)."""

    def __init__(self, pool: Pool, images: ResponseImages) -> None:
        self._pool = pool
        self._images = images

    async def page(
        self,
        project: UUID,
        query: Query[PagedItem],
        values: dict[str, Any],
        paging: Paging,
        held: Reservation,
    ) -> dict[str, Any]:
        """A page as OpenAI's list object: at least one item if there is any, then as many as the
        page may have. `query`: one of `item_pages`. `held`: what the answer has of the process's
        memory. Raises ShareUsedUp or Unavailable."""
        values = {**values, "after": paging.after, "limit": paging.row_limit}
        found = await fetch_idempotent(
            self._pool, query, {**values, "max_size": UNCOUNTED_BYTES}, json_as=bytes
        )
        rows = found[: paging.limit]
        rows = [row for row in rows if row.total <= _MAX_SIZE] or rows[:1]
        if rows and rows[-1].payload is None:
            values["limit"] = len(rows)
            rows = await self._large(query, values, rows[-1].total, held)
        envelope = list_envelope([{"id": row.id} for row in rows], has_more=len(found) > len(rows))
        return envelope | {"data": await self._shown(project, rows)}

    async def item(
        self, project: UUID, query: Query[PagedItem], values: dict[str, Any], held: Reservation
    ) -> Any:
        """One item, as an answer has it; None if there is none. `held`: as for `page`."""
        rows = await fetch_idempotent(self._pool, query, {**values, "max_size": UNCOUNTED_BYTES})
        if rows and rows[0].payload is None:
            rows = await self._large(query, values, rows[0].total, held)
            return (await self._shown(project, rows))[0] if rows else None
        return (await self._images.filled(project, [row.payload for row in rows]) or [None])[0]

    async def _shown(self, project: UUID, rows: Sequence[PagedItem]) -> list[Any]:
        """The items as `orjson` encodes them. Those without images are not decoded."""
        found = [row.payload for row in rows if row.payload is not None]
        return await self._images.filled(
            project,
            [
                orjson.loads(item) if may_have_marks(item) else orjson.Fragment(item)
                for item in found
            ],
        )

    async def _large(
        self, query: Query[PagedItem], values: dict[str, Any], size: int, held: Reservation
    ) -> list[PagedItem]:
        """The rows of items of so many bytes. Their payloads are not decoded: that and encoding
        them again would take part of a second, in which nothing else is served."""
        await held.grow(size)
        values = {**values, "max_size": size}
        rows = await fetch_idempotent(self._pool, query, values, size=size, json_as=bytes)
        await pause_if_large(size)
        return [row for row in rows if row.payload is not None]
