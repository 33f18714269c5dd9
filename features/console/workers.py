"""The processes: what they run, of how many slots, and whether they are alive."""

from datetime import timedelta
from uuid import UUID

from starlette.responses import Response

from features.console.changes import Confirmation, ask, first, not_found
from features.console.page import Page
from features.console.visit import Visit
from features.operator import service
from features.operator.diagnosis import process_text
from features.operator.facts import ProcessState
from models.db.database import fetch_idempotent
from models.db.queries import operations

ENDED_WITHIN = timedelta(hours=1)
"""Processes that have ended are listed for so long."""
_MOST_ENDED = 50


async def show(visit: Visit) -> Response:
    """The page."""
    rows = await fetch_idempotent(visit.pool, operations.WORKERS, {"since": ENDED_WITHIN})
    processes = [ProcessState.from_row(row) for row in rows]
    ended = [process for process in processes if process.ended is not None]
    return visit.page(
        "workers.html",
        processes=[process for process in processes if process.ended is None],
        ended=sorted(ended, key=lambda process: process.lease_seconds, reverse=True)[:_MOST_ENDED],
        ended_count=len(ended),
    )


async def confirm(visit: Visit) -> Response:
    """Asks whether a process is to hand over its responses and stop."""
    process = await _live_process(visit, visit.query.get("id", ""))
    name = process_text(process.kind, process.pid, process.host)
    return ask(
        visit,
        Confirmation(
            title=f"Drain the {name}?",
            meaning="It stops claiming responses, hands over those that it runs, and exits. "
            "Whatever has started it may start another one.",
            label="Drain",
            path="/workers/drain",
            back="/workers",
            fields=[("id", str(process.id))],
        ),
    )


async def drain(visit: Visit) -> Response:
    """Records the request. The process sees it at its next heartbeat."""
    fields = await visit.form(visit.user.token)
    process = await _live_process(visit, first(fields, "id"))
    async with visit.pool.connection() as connection:
        await service.drain(connection, str(process.id), [process], visit.actor)
    return visit.redirect("/workers")


async def _live_process(visit: Visit, text: str) -> operations.FoundProcess:
    """Raises PageError (404)."""
    try:
        identifier = UUID(text)
    except ValueError:
        raise not_found("process") from None
    values = {"name": None, "prefix": identifier.hex}
    rows = await fetch_idempotent(visit.pool, operations.FIND_WORKERS, values)
    if not rows or rows[0].dead:
        raise not_found("live process")
    return rows[0]


PAGES = (
    Page("/workers", show),
    Page("/workers/drain", confirm),
    Page("/workers/drain", drain, method="POST"),
)
