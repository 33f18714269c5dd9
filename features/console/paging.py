"""Pages of lists whose rows have ids that grow with time: the position is the last row's id."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from features.console.errors import PageError
from features.console.visit import Visit
from features.operator.filter import LAST_ID

PAGE_SIZE = 50
_MAX_FIELD = 200

RowT = TypeVar("RowT")


def before(visit: Visit, parse: Callable[[str], UUID | None]) -> UUID:
    """The id behind which the page begins. `parse`: the UUID of a public id. Raises PageError (400)
    for a text that is no id."""
    text = visit.query.get("before")
    if text is None:
        return LAST_ID
    found = parse(text)
    if found is None:
        raise PageError(400, "No such page", "The position of this page is no id.")
    return found


def split(rows: Sequence[RowT]) -> tuple[Sequence[RowT], RowT | None]:
    """The rows of a page, of one row more than fit; and the last one of them if there are more."""
    if len(rows) <= PAGE_SIZE:
        return rows, None
    return rows[:PAGE_SIZE], rows[PAGE_SIZE - 1]


def text_parameter(visit: Visit, name: str) -> str | None:
    """A filter of the URL; None if it is not set."""
    return visit.query.get(name, "").strip()[:_MAX_FIELD] or None


def uuid_of(text: str) -> UUID | None:
    """The UUID of 32 hexadecimal digits; None for any other text."""
    try:
        return UUID(hex=text)
    except ValueError:
        return None
