"""Item references: what they mean is looked up before anything is stored (contract §6.1)."""

from uuid import UUID

from models.db.database import Pool, read
from models.db.queries import statements
from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.items import references, resolved


async def with_referred(
    pool: Pool, project: UUID, items: list[Item], most: int, where: str = "input"
) -> list[Item]:
    """The items with what their references mean in their place; together that may be `most` bytes.

    `where`: the name of the list in the request. Raises InvalidRequest.
    """
    wanted = references(items)
    if not wanted:
        return items
    rows = await read(pool, statements.REFERRED, {"ids": wanted, "project": project, "most": most})
    if any(row["payload"] is None for row in rows):
        message = f"The items that '{where}' refers to are larger than {most} bytes together."
        raise InvalidRequest(message, param=where, code="input_too_large")
    return resolved(items, {row["id"]: row["payload"] for row in rows}, where)
