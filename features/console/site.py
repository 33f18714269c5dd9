"""Where the console is in the application, and `/`, which sends browsers to it. Nothing more of it
is loaded before somebody opens it."""

import asyncio
from importlib import import_module

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from models.config.settings import Settings
from models.hosts import is_loopback
from web.http import errors

CONSOLE = "/console"
_ANY_METHOD = None


def routes(settings: Settings, host: str) -> list[BaseRoute]:
    """Those of a process that listens on `host`. They are behind all other routes, so that requests
    of the API pay nothing."""
    console = _Console(settings, host)
    below = f"{CONSOLE}/{{rest:path}}"
    return [
        *(Route(path, endpoint=console, methods=_ANY_METHOD) for path in (CONSOLE, below)),
        Route("/", console.root),
    ]


class _Console:
    """The ASGI application of the console, loaded at the first request."""

    def __init__(self, settings: Settings, host: str) -> None:
        self._is_enabled = is_loopback(host) or settings.console.has_login
        self._address = f"{settings.console.path_prefix}{CONSOLE}"
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if not self._is_enabled:
            refusal = errors.error_response(errors.unknown_url(HTTPConnection(scope)))
            await refusal(scope, receive, send)
            return
        if self._app is None:
            # In a thread: it takes a tenth of a second, in which streams must go on.
            module = await asyncio.to_thread(import_module, "features.console.app")
            self._app = module.create_app()
        await self._app(scope, receive, send)

    async def root(self, request: Request) -> Response:
        """Sends browsers to the console; for clients of the API there is nothing."""
        wants_page = "text/html" in request.headers.get("accept", "")
        if not (self._is_enabled and wants_page):
            raise errors.unknown_url(request)
        headers = {"vary": "accept", "cache-control": "no-store"}
        return RedirectResponse(self._address, 303, headers=headers)
