"""The FastAPI application: routes, error handlers, and the start and stop of its state."""

import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from models.config.settings import Settings
from models.errors import MethodNotAllowed
from models.hosts import is_loopback
from models.ids import new_item_id
from web import gauges, openapi
from web.counters import HTTP_RESPONSES
from web.http import direct, errors
from web.http.auth import Project
from web.routes import (
    chat,
    compact,
    conversations,
    health,
    input_tokens,
    metrics,
    models,
    responses,
    websocket,
)
from web.state import AppState, bind_state

_ROUTE_MODULES = (
    health,
    metrics,
    responses,
    compact,
    input_tokens,
    conversations,
    chat,
    websocket,
    models,
)
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


class Application(FastAPI):
    """FastAPI with our own OpenAPI document, which describes our bodies and errors."""

    def __init__(self, settings: Settings, host: str) -> None:
        """`host`: the address to listen on. /docs and /openapi.json are served only on loopback."""
        is_local = is_loopback(host)
        super().__init__(
            title="Backburner",
            lifespan=_lifespan,
            docs_url="/docs" if is_local else None,
            redoc_url=None,
            openapi_url="/openapi.json" if is_local else None,
            redirect_slashes=False,
        )
        self.settings = settings
        self.listen_host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket; or starts and stops the application ("lifespan")."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        send = _with_request_id(send)
        call = (
            responses.direct_call(scope["method"], scope["path"])
            if scope["type"] == "http"
            else None
        )
        if call is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        request = Request(scope, receive, send)
        response = await direct.respond(call, request)
        await response(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, built at the first call."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.document(_routes(), self.settings)
        return self.openapi_schema


def create_app(settings: Settings, host: str = "127.0.0.1") -> Application:
    """The application of a process that listens on `host`."""
    app = Application(settings, host)
    errors.install(app)
    for module in _ROUTE_MODULES:
        app.include_router(module.router)
    app.add_api_route("/v1/{rest:path}", _unmatched_path, methods=_METHODS, include_in_schema=False)
    app.add_api_websocket_route("/v1/{rest:path}", websocket.unmatched_path)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    state = await AppState.open(app.settings, app.listen_host)
    bind_state(app, state)
    gauges.bind(state)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        await state.close()


def _routes() -> Iterator[BaseRoute]:
    for module in _ROUTE_MODULES:
        yield from module.router.routes


async def _unmatched_path(request: Request, _project: Project) -> Response:
    """404 or 405 for a path under /v1 without a matching route; 401 without an API key."""
    allowed: set[str] = set()
    for route in _routes():
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is Match.PARTIAL:
            allowed |= route.methods or set()
    if not allowed:
        raise errors.unknown_url(request)
    error = MethodNotAllowed(f"The method {request.method} is not allowed for {request.url.path}.")
    error.headers = {"allow": ", ".join(sorted(allowed))}
    raise error


_RESPONSE_START_TYPES = ("http.response.start", "websocket.accept", "websocket.http.response.start")
"""The messages that carry response headers. An accepted WebSocket has the status 101."""


def _with_request_id(send: Send) -> Send:
    """`send` that adds `x-request-id` to the response and counts it. Official clients show the id
    in errors."""
    request_id = new_item_id("req").encode()

    async def send_with_id(message: Message) -> None:
        if message["type"] in _RESPONSE_START_TYPES:
            HTTP_RESPONSES.labels(message.get("status", 101)).inc()
            message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
        await send(message)

    return send_with_id
