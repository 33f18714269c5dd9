"""Liveness, readiness and metrics; without an API key, so the bodies contain no secrets."""

import asyncio
import time
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import generate_latest
from starlette.responses import Response

from models.db.database import DATABASE_UNAVAILABLE, fetch_idempotent
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.operations import OLDEST_COMPATIBLE_REVISION, SCHEMA_REVISION
from models.db.schema import SchemaState, schema_state
from models.errors import Unauthenticated
from models.metrics import CONTENT_TYPE, scrape_allowed
from models.redis.client import REDIS_ERRORS, memory_problem
from models.version import VERSION
from web.counters import REGISTRY
from web.http.browsers import require_own_host
from web.http.errors import unknown_url
from web.http.json_responses import json_response
from web.state import AppState, app_state

router = APIRouter()

_QUERY_TIMEOUT = 5.0
_KEPT = 0.5
"""Seconds for which a look at PostgreSQL and Redis serves other requests."""


@router.get("/healthz")
async def healthz() -> Response:
    """200 while the process runs."""
    return json_response({"status": "ok", "version": VERSION})


class Dependencies(NamedTuple):
    """What a look at PostgreSQL and Redis has found."""

    database: str
    schema: str | None
    schema_state: SchemaState | None
    workers: dict[str, int]
    """live processes of each kind"""
    redis: str
    redis_memory: str | None


class DependencyLooks:
    """Looks at PostgreSQL and Redis, one at a time. Requests need no key, so those that come
    meanwhile share it, and a result serves those that come soon."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._look: asyncio.Task[Dependencies] | None = None
        self._began = 0.0

    async def show(self) -> Dependencies:
        """The result of the look that runs now, or of one that began lately."""
        now = time.monotonic()
        if self._look is None or (self._look.done() and now - self._began > _KEPT):
            self._began = now
            self._look = asyncio.create_task(_look(self._state))
        # A client that disconnects ends its own request only.
        return await asyncio.shield(self._look)


def bind_dependency_looks(app: FastAPI, state: AppState) -> None:
    """Makes `/readyz` of this application share its looks."""
    app.state.dependency_looks = DependencyLooks(state)


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 if Postgres responds within 5 s, this release runs on its schema, this process could
    renew its lease, and the process is not stopping. Redis, workers and the storage of files are
    only reported. What this process knows itself is of now, everything else up to half a second
    old."""
    state = app_state(request)
    looks: DependencyLooks = request.app.state.dependency_looks
    found = await looks.show()
    is_ready = (
        found.database == "ok"
        and found.schema_state == SchemaState.OK
        and state.lease.is_valid
        and not state.stopping
    )
    report: dict[str, Any] = {
        "ready": is_ready,
        "stopping": state.stopping,
        "database": found.database,
        "schema": found.schema,
        "schema_state": found.schema_state,
        "lease": "ok" if state.lease.is_valid else "not renewed",
        "workers": found.workers,
        "redis": found.redis,
        "redis_memory": found.redis_memory,
    }
    for feature in state.features.values():
        report |= await feature.readiness()
    if found.redis == "ok" and not state.bus.healthy:
        report["redis"] = "connecting"
    return json_response(report, status=200 if is_ready else 503)


async def _look(state: AppState) -> Dependencies:
    database, schema, state_of_schema, workers = "ok", None, None, {}
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT):
            schema, state_of_schema = await _schema(state)
            counts = await fetch_idempotent(state.pool, LIVE_WORKERS, {})
            workers = {count.kind: count.live for count in counts}
    except (*DATABASE_UNAVAILABLE, TimeoutError) as error:
        database = f"unreachable: {type(error).__name__}"
    return Dependencies(database, schema, state_of_schema, workers, *await _redis_status(state))


async def _redis_status(state: AppState) -> tuple[str, str | None]:
    """Whether Redis can be used, and whether its memory is limited as it should be."""
    try:
        try:
            problem = await memory_problem(state.redis)
        except REDIS_ERRORS:
            # The network may have lost this connection since the last look. The next one is new.
            problem = await memory_problem(state.redis)
    except REDIS_ERRORS as error:
        return f"unreachable: {type(error).__name__}", None
    return "ok", problem or "ok"


async def _schema(state: AppState) -> tuple[str, SchemaState]:
    """The revision of the database, and whether this release runs on it."""
    revision = (await fetch_idempotent(state.pool, SCHEMA_REVISION, {}))[0]
    [oldest] = await fetch_idempotent(state.pool, OLDEST_COMPATIBLE_REVISION, {})
    return revision, schema_state(revision, oldest)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """This process's figures and those of the open responses, in Prometheus' text format.

    Served on loopback, or to requests with the metrics token.
    """
    state = app_state(request)
    is_allowed = scrape_allowed(
        state.settings.metrics, state.host, request.headers.get("authorization")
    )
    if is_allowed is None:
        raise unknown_url(request)
    if not is_allowed:
        raise Unauthenticated("Send the metrics token: 'Authorization: Bearer TOKEN'.")
    if state.settings.metrics.token is None:
        require_own_host(request, state.settings.allowed_hosts)
    for feature in state.features.values():
        await feature.refresh_gauges()
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE)
