"""Item references in an input are replaced by the items before anything is stored."""

from uuid import UUID

from models.db.database import Pool, fetch_idempotent
from models.db.queries.history import REFERENCED_ITEMS
from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.items import referenced_ids, substitute_references


async def resolve_references(
    pool: Pool, project: UUID, items: list[Item], max_bytes: int, where: str = "input"
) -> list[Item]:
    """The items, with each reference replaced by the item it names, at most `max_bytes` of them.

    `where` is the name of the list in the request. Raises InvalidRequest.
    """
    ids = referenced_ids(items)
    if not ids:
        return items
    rows = await fetch_idempotent(
        pool, REFERENCED_ITEMS, {"ids": ids, "project": project, "max_bytes": max_bytes}
    )
    items_by_id = {row.id: row.payload for row in rows if row.payload is not None}
    if any(row.payload is None for row in rows):
        raise InvalidRequest(
            f"The items that '{where}' refers to are larger than {max_bytes} bytes together.",
            param=where,
            code="input_too_large",
        )
    return substitute_references(items, items_by_id, where)
