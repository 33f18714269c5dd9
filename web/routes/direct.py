"""Routes that are called without the layers that FastAPI puts around each route.

FastAPI compares the path with each route, opens three exit stacks and resolves the dependencies. So
the routes that are called most are looked up first, and called with what they need. They are
registered with FastAPI like all others: it describes them, and answers every request that is not
exactly one of theirs (docs/architecture.md).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.db.queries.api_keys import ApiKey
from web.http import errors
from web.http.auth import authorize
from web.http.body import JsonBody


class DirectRoute(NamedTuple):
    """A route that is called directly."""

    path: str
    """Its path as it is registered, with the names of its parameters."""
    call: Callable[..., Awaitable[Response]]
    """Its function, called with the request, its key, and its body if that is read before."""
    admit: Callable[[Request, ApiKey], AsyncGenerator[JsonBody]] | None = None
    """Reads the body of a request that is admitted; ends with the request (web/admission.py)."""


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
    """A request of a route that is called directly."""

    @property
    def headers(self) -> Headers:
        """Made once."""
        if not hasattr(self, "_headers"):
            self._headers = IndexedHeaders(self.scope)
        return self._headers


async def respond(route: DirectRoute, scope: Scope, receive: Receive, send: Send) -> Response:
    """The response of a route, or that of the error it raises, as FastAPI would give it."""
    scope["route"] = route
    request = DirectRequest(scope, receive, send)
    try:
        key = await authorize(request)
        if route.admit is None:
            return await route.call(request, key)
        async with aclosing(route.admit(request, key)) as bodies:
            return await route.call(request, key, await anext(bodies))
    except Exception as error:  # noqa: BLE001  (every error becomes a response)
        return await errors.response_to(request, error)
