"""Requests of browsers: of pages from other origins (CORS, `web.cors_origins`), and of pages that
need no API key.

No cookie is ever used, so an origin is no credential: a page still has to send an API key.
WebSockets need nothing here: browsers do not ask before they open one, and cannot send the key.
"""

from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp

from models.errors import HostNotAllowed, InvalidRequest
from models.hosts import is_own_host
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.errors import error_response
from web.http.json_responses import POLL_HEADER

RATE_HEADERS = tuple(
    f"x-ratelimit-{part}-{name}"
    for name in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
)
"""The headers that say what is left of a project's rates."""
_EXPOSED_HEADERS = (
    "x-request-id",
    "openai-processing-ms",
    POLL_HEADER,
    IGNORED_HEADER,
    "x-omitted-tools",
    "retry-after",
    "x-should-retry",
    *RATE_HEADERS,
)
"""Headers of responses that a page may read."""
_MAX_AGE = 600
"""Seconds for which a browser keeps the answer to a preflight request."""


class CrossOrigin(CORSMiddleware):
    """Starlette's middleware; a refused preflight request gets an error in OpenAI's envelope."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
            max_age=_MAX_AGE,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight request."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return error_response(
            InvalidRequest("This origin, or what it asks for, is not allowed (web.cors_origins).")
        )


def require_own_host(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Raises HostNotAllowed if the request names another host. `allowed`: the setting
    `allowed_hosts`."""
    if not is_own_host(connection.headers.get("host"), allowed):
        raise HostNotAllowed
