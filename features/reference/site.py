"""The pages /docs and /openapi.json. They need no key, so they are served on loopback only."""

import asyncio
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from features.console.mount import CONSOLE
from models.config.settings import Settings
from models.hosts import is_loopback
from web.app import api_routes
from web.http.own_host import require_own_host

Json = dict[str, Any]
_METHODS = ("get", "post", "put", "patch", "delete")


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


@dataclass(frozen=True, slots=True)
class _Operation:
    """What can be done at a path."""

    method: str
    path: str
    summary: str
    description: str
    parameters: list[Json]
    bodies: list[tuple[str, str | None]]
    """media types of the body, each with the name of its schema"""
    answers: list[tuple[str, str, list[str]]]
    """status, description and names of schemas"""

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"{self.method}{self.path}".translate(str.maketrans("/{}", "---"))


def _page(document: Json, path_prefix: str) -> Response:
    """The document for people. The page loads nothing from elsewhere."""
    # Not before somebody reads it: web starts without the template engine.
    from features.console.templates import render
    from features.console.visit import HEADERS

    components = document["components"]
    groups: dict[str, list[_Operation]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if (operation := operations.get(method)) is not None:
                found = _operation(method, path, operation, components)
                groups.setdefault(operation["tags"][0], []).append(found)
    schemas = {name: pretty(schema) for name, schema in components["schemas"].items()}
    html = render(
        "reference.html",
        info=document["info"],
        groups=groups,
        schemas=schemas,
        prefix=path_prefix,
        root=f"{path_prefix}{CONSOLE}",
    )
    return HTMLResponse(html, headers=HEADERS)


def pretty(schema: Json) -> str:
    """JSON to read."""
    return json.dumps(schema, indent=2, ensure_ascii=False)


def _operation(method: str, path: str, operation: Json, components: Json) -> _Operation:
    body = _resolved(operation.get("requestBody", {}), components)
    answers = {
        status: _resolved(answer, components) for status, answer in operation["responses"].items()
    }
    return _Operation(
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=[_resolved(each, components) for each in operation.get("parameters", [])],
        bodies=_schemas_of(body),
        answers=[
            (
                status,
                answer.get("description", ""),
                [name for _, name in _schemas_of(answer) if name],
            )
            for status, answer in answers.items()
        ],
    )


def _resolved(part: Json, components: Json) -> Json:
    """A part of the document, or what it refers to."""
    reference = part.get("$ref")
    if reference is None:
        return part
    _, _, kind, name = reference.split("/")
    resolved: Json = components[kind][name]
    return resolved


def _schemas_of(part: Json) -> list[tuple[str, str | None]]:
    """Media types of a body or an answer, each with the name of its schema."""
    content = part.get("content", {})
    return [(media, _schema_name(each.get("schema", {}))) for media, each in content.items()]


def _schema_name(schema: Json) -> str | None:
    reference = schema.get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]
