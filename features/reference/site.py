"""The pages /docs and /openapi.json. They need no key, so they are served on loopback only."""

import asyncio
import json
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from features.console.site import CONSOLE
from models.config.settings import Settings
from models.hosts import is_loopback
from web.app import api_routes
from web.http.browsers import require_own_host

Json = dict[str, Any]


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
        return await asyncio.to_thread(self._html)

    def _html(self) -> Response:
        return _page(self._document, self._settings.console.path_prefix)

    @cached_property
    def _document(self) -> Json:
        from features.reference.openapi import document

        return document(api_routes(), self._settings)


def _page(document: Json, path_prefix: str) -> Response:
    """The document for people. The page loads nothing from elsewhere."""
    # Not before somebody reads it: web starts without the template engine.
    from features.console.page import HEADERS
    from features.console.templates import render

    components = document["components"]
    groups: dict[str, list[Json]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            place = {"method": method.upper(), "path": path}
            answers = [
                (status, _resolved(answer, components["responses"]))
                for status, answer in operation["responses"].items()
            ]
            groups.setdefault(operation["tags"][0], []).append(
                {**operation, **place, "answers": answers}
            )
    html = render(
        "reference.html",
        info=document["info"],
        groups=groups,
        schemas={
            name: json.dumps(schema, indent=2, ensure_ascii=False)
            for name, schema in components["schemas"].items()
        },
        prefix=path_prefix,
        root=f"{path_prefix}{CONSOLE}",
    )
    return HTMLResponse(html, headers=HEADERS)


def _resolved(answer: Json, components: Json) -> Json:
    """A response, or the component that it refers to."""
    if "$ref" not in answer:
        return answer
    resolved: Json = components[answer["$ref"].rpartition("/")[2]]
    return resolved
