"""Liveness and readiness; without authentication, so the bodies contain no secrets."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import DATABASE_UNAVAILABLE, fetch_idempotent
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.operations import OLDEST_COMPATIBLE_REVISION, SCHEMA_REVISION
from models.db.schema import FIRST_WITH_COMPATIBILITY, SchemaState, schema_state
from models.redis.client import REDIS_ERRORS
from models.redis.eviction import memory_problem
from models.version import VERSION
from web.http.json_responses import json_response
from web.state import AppState, app_state

router = APIRouter()

_QUERY_TIMEOUT = 5.0


@router.get("/healthz")
async def healthz() -> Response:
    """200 while the process runs."""
    return json_response({"status": "ok", "version": VERSION})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 if Postgres responds within 5 s, this release runs on its schema, this process could
    renew its lease, and the process is not stopping. Redis, workers and the storage of files are
    only reported."""
    state = app_state(request)
    report: dict[str, Any] = {
        "ready": False,
        "stopping": state.stopping,
        "database": "unreachable",
        "schema": None,
        "schema_state": None,
        "lease": "ok" if state.lease.is_valid else "not renewed",
        "workers": {},
    }
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT):
            report["schema"], report["schema_state"] = await _schema(state)
            workers = await fetch_idempotent(state.pool, LIVE_WORKERS, {})
            report["workers"] = {count.kind: count.live for count in workers}
        report["database"] = "ok"
    except (*DATABASE_UNAVAILABLE, TimeoutError) as error:
        report["database"] = f"unreachable: {type(error).__name__}"
    report["redis"], report["redis_memory"] = await _redis_status(state)
    storage = state.file_store.storage_state
    report["files"] = None if storage is None else await storage.show()
    report["ready"] = (
        report["database"] == "ok"
        and report["schema_state"] == SchemaState.OK
        and state.lease.is_valid
        and not state.stopping
    )
    return json_response(report, status=200 if report["ready"] else 503)


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
    return "ok" if state.bus.healthy else "connecting", problem or "ok"


async def _schema(state: AppState) -> tuple[str, SchemaState]:
    """The revision of the database, and whether this release runs on it."""
    revision = (await fetch_idempotent(state.pool, SCHEMA_REVISION, {}))[0]
    oldest: list[str] = []
    if revision >= FIRST_WITH_COMPATIBILITY:
        oldest = await fetch_idempotent(state.pool, OLDEST_COMPATIBLE_REVISION, {})
    return revision, schema_state(revision, oldest[0] if oldest else None)
