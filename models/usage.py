"""What projects have used."""

from datetime import datetime
from uuid import UUID

from models.db.database import Connection, Pool, fetch_idempotent
from models.db.queries.usage import USED_TOKENS


async def used_tokens(on: Pool | Connection, project: UUID, since: datetime) -> int:
    """The input and output tokens of the project's responses that have ended since then, and of its
    proxied chat completions. One statement. Raises what DATABASE_UNAVAILABLE names."""
    rows = await fetch_idempotent(on, USED_TOKENS, {"project": project, "since": since})
    return rows[0]
