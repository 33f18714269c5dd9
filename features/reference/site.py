"""The pages /docs and /openapi.json. They need no key, so they are served on loopback only."""

import asyncio
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from models.config.settings import Settings
from models.hosts import is_loopback
from web.app import api_routes
from web.http.own_host import require_own_host


def routes(settings: Settings, host: str) -> list[BaseRoute]:
    """Those of a process that listens on `host`."""
    if not is_loopback(host):
        return []
    reference = _Reference(settings)
    return [Route("/docs", reference.page), Route("/openapi.json", reference.document)]


class _Reference:
    """The pages of one process. They are made in a thread: the document takes a second, because it
    imports the official SDK's models, and the page is long."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def document(self, request: Request) -> Response:
        """The OpenAPI document. Raises HostNotAllowed."""
        require_own_host(request, self._settings.allowed_hosts)
        return JSONResponse(await asyncio.to_thread(lambda: self._document))

    async def page(self, request: Request) -> Response:
        """The OpenAPI document for people. Raises HostNotAllowed."""
        require_own_host(request, self._settings.allowed_hosts)
        return await asyncio.to_thread(self._page)

    def _page(self) -> Response:
        # Not before somebody reads it: web starts without the template engine.
        from features.reference.page import reference_page

        return reference_page(self._document, self._settings.console.path_prefix)

    @cached_property
    def _document(self) -> dict[str, Any]:
        from features.reference.openapi import document

        return document(api_routes(), self._settings)
