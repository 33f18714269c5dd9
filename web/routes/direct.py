"""Routes that are called without the layers that FastAPI puts around each route.

FastAPI compares the path with each route, opens three exit stacks and resolves the dependencies. So
the routes that are called most are looked up first, and called with what they need. They are
registered with FastAPI like all others: it describes them, and answers every request that is not
exactly one of theirs (docs/architecture.md).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

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


async def respond(route: DirectRoute, request: Request) -> Response:
    """The response of a route, or that of the error it raises, as FastAPI would give it."""
    try:
        key = await authorize(request)
        if route.admit is None:
            return await route.call(request, key)
        async with aclosing(route.admit(request, key)) as bodies:
            return await route.call(request, key, await anext(bodies))
    except Exception as error:  # noqa: BLE001  (every error becomes a response)
        return await errors.response_to(request, error)
