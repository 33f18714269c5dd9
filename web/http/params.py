"""Query parameters.

They are parsed here, not by FastAPI, so that their errors have our envelope and texts.
"""

import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Request

from models.errors import InvalidRequest
from models.ids import parse_admin_id
from models.wire.events import Item
from models.wire.request import require_include
from web.http.json_responses import list_envelope

PAGE_SIZES = {"minimum": 1, "maximum": 100}
PAGE_SIZE = 20
ORDERS = ("asc", "desc")

_INTEGER = re.compile(r"-?[0-9]{1,30}")
"""An integer as in JSON; `int` also accepts other digits, underscores and spaces."""


def boolean(request: Request, name: str, *, default: bool) -> bool:
    """`true` or `false`. Raises InvalidRequest(invalid_type)."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if value not in ("true", "false"):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected a boolean, but got '{value[:100]}' instead.",
            param=name,
            code="invalid_type",
        )
    return value == "true"


def integer(request: Request, name: str, *, minimum: int, maximum: int = 2**31 - 1) -> int | None:
    """An integer from `minimum` to `maximum`; None without the parameter. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is None:
        return None
    if not _INTEGER.fullmatch(value):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected an integer, but got '{value[:100]}' instead.",
            param=name,
            code="invalid_type",
        )
    number = int(value)
    if number < minimum:
        raise InvalidRequest(
            f"Invalid '{name}': integer below minimum value. "
            f"Expected a value >= {minimum}, but got {number} instead.",
            param=name,
            code="integer_below_min_value",
        )
    if number > maximum:
        raise InvalidRequest(
            f"Invalid '{name}': integer above maximum value. "
            f"Expected a value <= {maximum}, but got {number} instead.",
            param=name,
            code="integer_above_max_value",
        )
    return number


def choice(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    """One of `allowed`; None without the parameter. Raises InvalidRequest(invalid_value)."""
    value = request.query_params.get(name)
    if value is not None and value not in allowed:
        supported = " and ".join(f"'{option}'" for option in allowed)
        raise InvalidRequest(
            f"Invalid value: '{value[:100]}'. Supported values are: {supported}.",
            param=name,
            code="invalid_value",
        )
    return value


def parse_include(request: Request) -> list[str]:
    """The values of `include[]`, which some clients spell `include`. Raises InvalidRequest."""
    values = request.query_params.getlist("include[]") + request.query_params.getlist("include")
    require_include(values)
    return values


def storable_item_id(value: str | None) -> str | None:
    """An item id that can be a query parameter of Postgres: U+0000 becomes U+FFFD, as in bodies."""
    return None if value is None else value.replace("\0", "\ufffd")


@dataclass(frozen=True, slots=True)
class Paging:
    """The requested page of a list."""

    limit: int
    order: str
    after: str | None

    @property
    def row_limit(self) -> int:
        """Rows to read: one more than the page has, which shows whether there are more."""
        return self.limit + 1

    def after_id(self, prefix: str) -> UUID | None:
        """The id behind which the page begins, in a list of admin ids with this prefix; None: the
        first page. Raises InvalidRequest for what is no such id."""
        found = None if self.after is None else parse_admin_id(prefix, self.after)
        if self.after is not None and found is None:
            raise InvalidRequest(
                f"Invalid 'after': '{self.after[:100]}' is no id of this list.",
                param="after",
                code="invalid_value",
            )
        return found

    def page_of(self, objects: list[Item]) -> dict[str, Any]:
        """The page, made of the objects of all rows that were read."""
        return list_envelope(objects[: self.limit], has_more=len(objects) > self.limit)


def paging(request: Request) -> Paging:
    """`limit`, `order` and `after` of a list. Raises InvalidRequest."""
    limit = integer(request, "limit", **PAGE_SIZES)
    order = choice(request, "order", ORDERS) or "desc"
    return Paging(
        PAGE_SIZE if limit is None else limit,
        order,
        storable_item_id(request.query_params.get("after")),
    )
