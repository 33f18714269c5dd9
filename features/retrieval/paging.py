"""Lists that can be read in both directions: OpenAI's `after` and `before`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from fastapi import Request

from features.retrieval.queries import PagedEntry, PagedStore
from web.http.params import ORDERS, PAGE_SIZE, PAGE_SIZES, choice, integer, storable_item_id

RowT = TypeVar("RowT", PagedStore, PagedEntry)


@dataclass(frozen=True, slots=True)
class TwoWayPaging:
    """The requested page of a list: behind `after`, or else the one that ends before `before`."""

    limit: int
    order: str
    after: str | None
    before: str | None

    @classmethod
    def of(cls, request: Request) -> "TwoWayPaging":
        """Raises InvalidRequest."""
        limit = integer(request, "limit", **PAGE_SIZES)
        order = choice(request, "order", ORDERS) or "desc"
        after = storable_item_id(request.query_params.get("after"))
        before = storable_item_id(request.query_params.get("before"))
        return cls(PAGE_SIZE if limit is None else limit, order, after, before)

    @property
    def row_limit(self) -> int:
        """Rows to read: one more than the page has, which shows whether there are more."""
        return self.limit + 1

    @property
    def _is_backward(self) -> bool:
        return self.before is not None and self.after is None

    @property
    def scan_order(self) -> str:
        """In which order the rows are read: a page that ends before a row is read from there."""
        if not self._is_backward:
            return self.order
        return "asc" if self.order == "desc" else "desc"

    def bounds(self, after: UUID | None, before: UUID | None) -> dict[str, object]:
        """The parameters of the statement; `after` and `before` are those of the rows."""
        if self._is_backward:
            return {"after": before, "until": None}
        return {"after": after, "until": before}

    def page(self, rows: Sequence[RowT]) -> tuple[list[RowT], bool]:
        """The rows of the page in the order of the list, and whether there are more."""
        shown = list(rows[: self.limit])
        has_more = bool(rows) and rows[0].found > len(shown)
        if self._is_backward:
            shown.reverse()
        return shown, has_more
