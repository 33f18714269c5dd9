"""The web application: routes, errors, and what a process opens and closes."""

import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.config.settings import Settings
from models.errors import MethodNotAllowed
from models.hosts import is_loopback
from models.ids import new_item_id
from web import model_catalog, openapi
from web.counters import HTTP_RESPONSES
from web.http import errors
from web.http.auth import Project
from web.routes import (
    chat,
    compact,
    conversations,
    health,
    input_tokens,
    metrics,
    responses,
    websocket,
)
from web.state import AppState

_ROUTE_MODULES = (
    health,
    metrics,
    responses,
    compact,
    input_tokens,
    conversations,
    chat,
    websocket,
    model_catalog,
)
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


class Application(FastAPI):
    """FastAPI, except that the document of its routes is ours (web/openapi): FastAPI's own knows neither our bodies nor our errors."""

    def openapi(self) -> dict[str, Any]:
        """Made when it is first asked for."""
        if self.openapi_schema is None:
            routes = [route for part in _ROUTE_MODULES for route in part.router.routes]
            self.openapi_schema = openapi.document(routes, self.state.settings)
        return self.openapi_schema


def create_app(settings: Settings, host: str = "127.0.0.1") -> FastAPI:
    """The application for a process that listens on `host`; its own documentation is served on loopback only."""
    local = is_loopback(host)
    app = Application(
        title="Backburner",
        lifespan=_lifespan,
        docs_url="/docs" if local else None,
        redoc_url=None,
        openapi_url="/openapi.json" if local else None,
        redirect_slashes=False,
    )
    app.state.settings, app.state.host = settings, host
    errors.install(app)
    for part in _ROUTE_MODULES:
        app.include_router(part.router)
    app.add_api_route("/v1/{rest:path}", _unmatched_path, methods=_METHODS, include_in_schema=False)
    app.add_api_websocket_route("/v1/{rest:path}", websocket.unmatched_path)
    app.add_middleware(RequestIdMiddleware)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = await AppState.open(app.state.settings)
    app.state.app_state, app.state.keys = state, state.keys
    metrics.bind_gauges(state)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        await state.close()


async def _unmatched_path(request: Request, _project: Project) -> Response:
    """Under /v1 even what does not exist is only told to those with a key (design §8)."""
    allowed: set[str] = set()
    for route in (
        route
        for part in _ROUTE_MODULES
        for route in part.router.routes
        if isinstance(route, APIRoute)
    ):
        if route.matches(request.scope)[0] is Match.PARTIAL:
            allowed |= route.methods or set()
    if not allowed:
        raise errors.unknown_url(request)
    error = MethodNotAllowed(f"The method {request.method} is not allowed for {request.url.path}.")
    error.headers = {"allow": ", ".join(sorted(allowed))}
    raise error


_RESPONSE_START_TYPES = ("http.response.start", "websocket.accept", "websocket.http.response.start")
"""The heads of answers; that of a socket which is accepted has the status 101."""


class RequestIdMiddleware:
    """Every answer carries `x-request-id`, which the official clients show in their errors; and every answer is counted. So does the answer
    to a WebSocket's handshake."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = new_item_id("req").encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] in _RESPONSE_START_TYPES:
                HTTP_RESPONSES.labels(message.get("status", 101)).inc()
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)
