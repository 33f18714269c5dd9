"""Query parameters, checked by hand so that their errors read like all others."""

import re
from dataclasses import dataclass

from fastapi import Request

from models.errors import InvalidRequest
from models.wire.request import require_include

PAGE_SIZES = {"minimum": 1, "maximum": 100}
PAGE_SIZE = 20
ORDERS = ("asc", "desc")

_INTEGER = re.compile(r"-?[0-9]{1,30}")
"""What JSON would take; `int` also reads other alphabets' digits, underscores and spaces."""


def boolean(request: Request, name: str, *, default: bool) -> bool:
    """`true` or `false`. Raises InvalidRequest(invalid_type)."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if given not in ("true", "false"):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected a boolean, but got '{given[:100]}' instead.",
            param=name,
            code="invalid_type",
        )
    return given == "true"


def integer(request: Request, name: str, *, minimum: int, maximum: int = 2**31 - 1) -> int | None:
    """A whole number in range, or None when it was not given. Raises InvalidRequest."""
    given = request.query_params.get(name)
    if given is None:
        return None
    if not _INTEGER.fullmatch(given):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected an integer, but got '{given[:100]}' instead.",
            param=name,
            code="invalid_type",
        )
    value = int(given)
    if value < minimum:
        raise InvalidRequest(
            f"Invalid '{name}': integer below minimum value. Expected a value >= {minimum}, but got {value} instead.",
            param=name,
            code="integer_below_min_value",
        )
    if value > maximum:
        raise InvalidRequest(
            f"Invalid '{name}': integer above maximum value. Expected a value <= {maximum}, but got {value} instead.",
            param=name,
            code="integer_above_max_value",
        )
    return value


def choice(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    """One of `allowed`, or None when it was not given. Raises InvalidRequest(invalid_value)."""
    given = request.query_params.get(name)
    if given is not None and given not in allowed:
        supported = " and ".join(f"'{value}'" for value in allowed)
        raise InvalidRequest(
            f"Invalid value: '{given[:100]}'. Supported values are: {supported}.",
            param=name,
            code="invalid_value",
        )
    return given


def parse_include(request: Request) -> list[str]:
    """The values of `include[]`, which clients also spell `include`. Raises InvalidRequest."""
    values = request.query_params.getlist("include[]") + request.query_params.getlist("include")
    require_include(values)
    return values


def storable_item_id(value: str | None) -> str | None:
    """An item's id as Postgres takes it: no id holds U+0000; as in bodies it becomes U+FFFD, and names nothing."""
    return None if value is None else value.replace("\0", "\ufffd")


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of a list is wanted."""

    limit: int
    order: str
    after: str | None


def paging(request: Request) -> Paging:
    """`limit`, `order` and `after` of a list (contract §1.1). Raises InvalidRequest."""
    limit = integer(request, "limit", **PAGE_SIZES)
    order = choice(request, "order", ORDERS) or "desc"
    return Paging(
        PAGE_SIZE if limit is None else limit,
        order,
        storable_item_id(request.query_params.get("after")),
    )
