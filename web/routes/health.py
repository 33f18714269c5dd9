"""Liveness and readiness; open to everybody, without secrets."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import AWAY, read
from models.db.queries import statements
from models.redis.client import UNHEARD
from web.http.json_responses import json_answer
from web.state import Front, front_of

router = APIRouter()

_SCHEMA = "SELECT version_num FROM alembic_version"
_WITHIN = 5.0


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 when Postgres answers within 5 s, the schema is the newest, and the process is not stopping; the rest is only reported."""
    front = front_of(request)
    told: dict[str, Any] = {
        "ready": False,
        "stopping": front.stopping,
        "database": "unreachable",
        "schema": None,
        "workers": {},
    }
    try:
        async with asyncio.timeout(_WITHIN):
            told["schema"] = (await read(front.pool, _SCHEMA, {}))[0]["version_num"]
            told["workers"] = {
                row["kind"]: row["live"]
                for row in await read(front.pool, statements.LIVE_WORKERS, {})
            }
        told["database"] = "ok"
    except (*AWAY, TimeoutError) as error:
        told["database"] = f"unreachable: {type(error).__name__}"
    told["redis"] = await _redis(front)
    told["ready"] = told["database"] == "ok" and told["schema"] == _head() and not front.stopping
    return json_answer(told, status=200 if told["ready"] else 503)


async def _redis(front: Front) -> str:
    try:
        await front.redis.ping()
    except UNHEARD as error:
        return f"unreachable: {type(error).__name__}"
    return "ok" if front.bus.healthy else "connecting"


@cache
def _head() -> str | None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations"))
    return ScriptDirectory.from_config(config).get_current_head()
