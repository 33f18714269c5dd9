"""The FastAPI application: routes, error handlers, the start and stop of its state, and the gauges
of this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client import Gauge
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from models.config.settings import Settings
from models.errors import ApiError, MethodNotAllowed, Unavailable
from models.features import feature_parts
from models.garbage import tune_garbage_collector
from models.load.pacing import Pacer
from models.tracing.spans import NO_SPAN, Tracer, open_tracer
from web.counters import OTHER_ROUTES, POOL, REGISTRY, count_http_response, observe_request
from web.http import errors
from web.http.auth import ANTHROPIC_KEY, AnyKey
from web.http.browsers import CrossOrigin
from web.http.clients import Connections
from web.http.request_record import (
    ANY_PATH,
    RequestRecord,
    end_request_span,
    start_request_span,
    write_refusal,
)
from web.routes import direct, monitoring, responses
from web.state import AppState, bind_state, started_state

READERS = Gauge(
    "backburner_readers",
    "Streams and waiting requests that this process serves from a response's log.",
    registry=REGISTRY,
)
BODY_BYTES = Gauge(
    "backburner_body_bytes",
    "Bytes of the larger request bodies that this process reads and checks now.",
    registry=REGISTRY,
)
BUS_HEALTHY = Gauge(
    "backburner_bus_healthy",
    "1 while Redis delivers live events to this process; 0: readers are served from Postgres.",
    registry=REGISTRY,
)
LEASE_AGE = Gauge(
    "backburner_lease_age_seconds",
    "Seconds since this process's lease was last renewed.",
    registry=REGISTRY,
)


def bind(state: AppState) -> None:
    """Makes the gauges read this state."""
    POOL.pool = state.pool
    READERS.set_function(lambda: state.bus.readers)
    BODY_BYTES.set_function(lambda: state.budgets.bodies.used)
    BUS_HEALTHY.set_function(lambda: float(state.bus.healthy))
    LEASE_AGE.set_function(lambda: state.lease.age)


_UNKNOWN_PATHS = f"/v1/{ANY_PATH}"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_IN_A_TURN = 3
"""Requests that begin in one turn of the event loop, which takes a few milliseconds. Hundreds that
one client sends at the same moment would stop everything else for a second. Keys take turns."""

_KEY_HEADERS = (b"authorization", ANTHROPIC_KEY.encode())

_NEW_OBJECTS = 2_000_000
"""Objects that a process may have made, and not freed, before garbage is looked for among them in
any case: `MemoryTrimmer` does it at better times."""


class Application(FastAPI):
    """FastAPI, with what is done around each request."""

    def __init__(self, settings: Settings, host: str) -> None:
        """`host`: the address to listen on."""
        super().__init__(
            title="Backburner",
            lifespan=_lifespan,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            redirect_slashes=False,
        )
        self.settings = settings
        self.listen_host = host
        self.tracer: Tracer | None = None
        """Set while the application runs, if traces are on."""
        self.connections = Connections(settings.web, _record_refusal)
        self._pacer = Pacer(_IN_A_TURN)
        self._sends = Pacer(1)
        self._serve: ASGIApp = self._respond
        if settings.web.cors_origins:
            self._serve = CrossOrigin(self._respond, settings.web.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket; or starts and stops the application ("lifespan")."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        record = RequestRecord(scope, receive, send, count_http_response, self._sends)
        span = NO_SPAN if self.tracer is None else start_request_span(self.tracer, scope)
        try:
            await self._serve(scope, record.receive, record.send)
        except asyncio.CancelledError:
            await _cut_off(scope, record)
        finally:
            record.end()
            if scope["type"] == "http":
                route = record.route or OTHER_ROUTES
                observe_request(scope["method"], route, record.status or 0, record.seconds)
            if span is not NO_SPAN:
                end_request_span(span, record)

    async def _relayed(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, Send] | None:
        """As `Relay` in web/hooks.py; an error of the relay is the answer."""
        state = started_state(self)
        if state is None or state.hooks.relay is None:
            return receive, send
        scope["app"] = self
        try:
            return await state.hooks.relay(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = await errors.response_to(Request(scope, receive), error)
            await response(scope, receive, send)
            return None

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket; `receive` and `send` are those of its record."""
        await self._pacer.wait(_authorization(scope))
        route = None
        here = await self._relayed(scope, receive, send)
        if here is None:
            return
        receive, send = here
        if scope["type"] == "http":
            route = responses.DIRECT.get((scope["method"], scope["path"]))
            if route is None:
                route = responses.direct_route(scope["method"], scope["path"])
        if route is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        response = await direct.respond(route, scope, receive, send)
        await response(scope, receive, send)


def _authorization(scope: Scope) -> bytes | None:
    """The header with the key, whatever is in it."""
    return next((value for name, value in scope["headers"] if name in _KEY_HEADERS), None)


def _record_refusal(error: ApiError, request_id: str) -> None:
    count_http_response(error.status)
    write_refusal(error.status, request_id, error.message)


async def _cut_off(scope: Scope, record: RequestRecord) -> None:
    """Ends a request that still runs when a process that stops has no more time: uvicorn cancels
    it. An answer that has begun is left without its end, so uvicorn closes the connection."""
    if scope["type"] == "http" and record.status is None:
        error = Unavailable("The server is stopping. Please retry.")
        record.note_error(error)
        await errors.error_response(error)(scope, record.receive, record.send)


def create_app(settings: Settings, host: str = "127.0.0.1") -> Application:
    """The application of a process that listens on `host`."""
    app = Application(settings, host)
    errors.install(app, api_routes())
    for router in _routers():
        app.include_router(router)
    app.add_api_route(_UNKNOWN_PATHS, _unmatched_path, methods=_METHODS, include_in_schema=False)
    # Behind the routes of the API, so that its requests pay nothing.
    for part in feature_parts("site"):
        app.router.routes += part.routes(settings, host)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    state = await AppState.open(app.settings, app.listen_host)
    state.open_features(part.FEATURE for part in feature_parts("web"))
    bind_state(app, state)
    monitoring.bind_dependency_looks(app, state)
    app.tracer = open_tracer(app.settings, "web")
    bind(state)
    tune_garbage_collector(_NEW_OBJECTS)
    try:
        yield
    finally:
        await state.close()
        if app.tracer is not None:
            app.tracer.close()


def _routers() -> Iterator[APIRouter]:
    for module in (monitoring, responses):
        yield module.router
    for part in feature_parts("routes"):
        yield from part.ROUTERS


def api_routes() -> Iterator[BaseRoute]:
    """All routes that a client of the API calls."""
    for router in _routers():
        yield from router.routes


async def _unmatched_path(request: Request, _key: AnyKey) -> Response:
    """404 or 405 for a path under /v1 without a matching route; 401 without an API key."""
    allowed: set[str] = set()
    for route in api_routes():
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is Match.PARTIAL:
            allowed |= route.methods or set()
    if not allowed:
        raise errors.unknown_url(request)
    error = MethodNotAllowed(f"The method {request.method} is not allowed for {request.url.path}.")
    error.headers = {"allow": ", ".join(sorted(allowed))}
    raise error
