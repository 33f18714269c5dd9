"""The headers of a request, for routes that look many of them up."""

from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope


class IndexedHeaders(Headers):
    """Starlette's headers with an index: Starlette compares each name with every header of the
    request, and an SDK sends twenty."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        # Of equal names the first one counts, as it does for Starlette.
        self._first = dict(reversed(self.raw))

    def get(self, key: str, default: Any = None) -> Any:
        """The first value of this name."""
        value = self._first.get(key.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")


class DirectRequest(Request):
    """A request of a route that is called directly (web/routes/direct.py)."""

    @property
    def headers(self) -> Headers:
        """Made once."""
        if not hasattr(self, "_headers"):
            self._headers = IndexedHeaders(self.scope)
        return self._headers
