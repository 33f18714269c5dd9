"""Where the console is in the application: nothing of it is loaded before somebody opens it."""

import asyncio
from importlib import import_module

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from models.config.settings import Settings
from models.hosts import is_loopback
from web.http import errors

CONSOLE = "/console"
_ANY_METHOD = None


class Console:
    """The ASGI application of the console, loaded at the first request."""

    def __init__(self, settings: Settings, host: str) -> None:
        """`host`: the address on which the process listens."""
        self.is_enabled = is_loopback(host) or settings.console.has_login
        """Whether there is a console at all."""
        self._app: ASGIApp | None = None

    def routes(self) -> list[Route]:
        """Behind all other routes, so that requests of the API pay nothing."""
        return [
            Route(CONSOLE, endpoint=self, methods=_ANY_METHOD, include_in_schema=False),
            Route(
                f"{CONSOLE}/{{rest:path}}",
                endpoint=self,
                methods=_ANY_METHOD,
                include_in_schema=False,
            ),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if not self.is_enabled:
            refusal = errors.error_response(errors.unknown_url(HTTPConnection(scope)))
            await refusal(scope, receive, send)
            return
        if self._app is None:
            # In a thread: it takes a tenth of a second, in which streams must go on.
            module = await asyncio.to_thread(import_module, "features.console.app")
            self._app = module.create_app()
        await self._app(scope, receive, send)


def wants_page(connection: HTTPConnection) -> bool:
    """Whether a browser asks for a page, and not a client of the API for JSON."""
    return "text/html" in connection.headers.get("accept", "")
