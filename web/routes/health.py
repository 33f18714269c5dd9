"""Liveness and readiness; without authentication, so the bodies contain no secrets."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import DATABASE_UNAVAILABLE, fetch_idempotent
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.operations import SCHEMA_REVISION
from models.redis.client import REDIS_ERRORS
from web.http.json_responses import json_response
from web.state import AppState, app_state

router = APIRouter()

_QUERY_TIMEOUT = 5.0


@router.get("/healthz")
async def healthz() -> Response:
    """200 while the process runs."""
    return json_response({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 if Postgres responds within 5 s, its schema is the newest, this process could renew its
    lease, and the process is not stopping. Redis and workers are only reported."""
    state = app_state(request)
    report: dict[str, Any] = {
        "ready": False,
        "stopping": state.stopping,
        "database": "unreachable",
        "schema": None,
        "lease": "ok" if state.lease.is_valid else "not renewed",
        "workers": {},
    }
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT):
            report["schema"] = (await fetch_idempotent(state.pool, SCHEMA_REVISION, {}))[0]
            workers = await fetch_idempotent(state.pool, LIVE_WORKERS, {})
            report["workers"] = {count.kind: count.live for count in workers}
        report["database"] = "ok"
    except (*DATABASE_UNAVAILABLE, TimeoutError) as error:
        report["database"] = f"unreachable: {type(error).__name__}"
    report["redis"] = await _redis_status(state)
    report["ready"] = (
        report["database"] == "ok"
        and report["schema"] == _newest_revision()
        and state.lease.is_valid
        and not state.stopping
    )
    return json_response(report, status=200 if report["ready"] else 503)


async def _redis_status(state: AppState) -> str:
    try:
        await state.redis.ping()
    except REDIS_ERRORS as error:
        return f"unreachable: {type(error).__name__}"
    return "ok" if state.bus.healthy else "connecting"


@cache
def _newest_revision() -> str | None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations"))
    return ScriptDirectory.from_config(config).get_current_head()
