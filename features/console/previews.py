"""The first lines of inputs and outputs in a list, for a session that may read them."""

from collections.abc import Sequence
from uuid import UUID

from features.console.page import Visit
from models.db.arrays import Uuids
from models.db.database import fetch_idempotent
from models.db.queries import listing
from models.db.queries.listing import ListedResponseRow, Preview

_CHARACTERS = 400
"""Of a text, of which the first line is shown."""
_SHOWN = 160


async def read_previews(
    visit: Visit, rows: Sequence[ListedResponseRow]
) -> dict[UUID, Preview] | None:
    """By the response; None: this session shows no inputs and outputs."""
    if not visit.may_read or not rows:
        return None
    values = {"ids": Uuids([row.id for row in rows]), "characters": _CHARACTERS}
    found = await fetch_idempotent(visit.pool, listing.PREVIEWS, values)
    return {each.id: Preview(each.id, _line(each.input), _line(each.output)) for each in found}


def _line(text: str | None) -> str | None:
    """The first line that is not empty, cut."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return None
    return lines[0] if len(lines[0]) <= _SHOWN else f"{lines[0][:_SHOWN]}…"
