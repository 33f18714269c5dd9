"""Requests of browser pages from other origins (CORS): `web.cors_origins`.

No cookie is ever used, so an origin is no credential: a page still has to send an API key.
WebSockets need nothing here: browsers do not ask before they open one, and cannot send the key.
"""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from models.errors import InvalidRequest
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.errors import error_response
from web.http.poll_after import HEADER as POLL_HEADER
from web.http.rate_headers import RATE_HEADERS

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
