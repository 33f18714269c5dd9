"""Item references: what they mean is looked up before anything is stored (contract §6.1)."""

from uuid import UUID

from models.db.database import Pool, read
from models.db.queries import statements
from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.items import referenced_ids, substitute_references


async def resolve_references(
    pool: Pool, project: UUID, items: list[Item], max_bytes: int, where: str = "input"
) -> list[Item]:
    """The items with what their references mean in their place; together that may be `most` bytes.

    `where`: the name of the list in the request. Raises InvalidRequest.
    """
    ids = referenced_ids(items)
    if not ids:
        return items
    rows = await read(
        pool, statements.REFERENCED_ITEMS, {"ids": ids, "project": project, "most": max_bytes}
    )
    if any(row["payload"] is None for row in rows):
        message = f"The items that '{where}' refers to are larger than {max_bytes} bytes together."
        raise InvalidRequest(message, param=where, code="input_too_large")
    return substitute_references(items, {row["id"]: row["payload"] for row in rows}, where)
