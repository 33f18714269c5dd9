"""What responses run on: processes with their slots, and upstreams with their circuits."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.outages import Outage, outages_of, project_names, read_waits
from features.console.page import Change, Page, Visit, confirmed, not_found
from features.operator import service
from features.operator.diagnosis import process_text
from models.config.upstream import UpstreamSettings
from models.db.database import Connection, execute, fetch_idempotent
from models.db.queries import console, operations
from models.db.queries.audit import RECORD, AuditEntry
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import OpenCircuit, UpstreamState, read_states
from models.upstream_probe import UpstreamProbe, probe_upstream

_ENDED_WITHIN = timedelta(hours=1)
"""Processes that have ended are listed for so long."""
_MOST_ENDED = 50
_SHOWN_CIRCUITS = 20
_SHOWN_MODELS = 50


async def show_workers(visit: Visit) -> Response:
    """The processes: what they run, of how many slots, and whether they are alive."""
    values = {"since": _ENDED_WITHIN}
    processes = await fetch_idempotent(visit.pool, operations.WORKERS, values)
    ended = [process for process in processes if process.ended is not None]
    return visit.page(
        "workers.html",
        processes=[process for process in processes if process.ended is None],
        ended=sorted(ended, key=lambda process: process.lease_seconds, reverse=True)[:_MOST_ENDED],
        ended_count=len(ended),
    )


async def _drain(visit: Visit, fields: QueryParams) -> Change:
    """A process hands over its responses and stops. It sees the request at its next heartbeat."""
    process = await _live_process(visit, fields.get("id", ""))

    async def make(connection: Connection) -> None:
        await service.drain(connection, str(process.id), [process], visit.actor)

    return Change(
        title=f"Drain the {process_text(process.kind, process.pid, process.host)}?",
        meaning="It stops claiming responses, hands over those that it runs, and exits. "
        "Whatever has started it may start another one.",
        label="Drain",
        back="/workers",
        make=make,
    )


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


@dataclass(frozen=True, slots=True)
class ShownUpstream:
    """An upstream as all workers together know it."""

    settings: UpstreamSettings
    states: Sequence[UpstreamState]
    """one for each worker that has written one"""
    outage: Outage | None
    """None: it does not fail"""

    @property
    def state(self) -> str:
        """`open`: a worker does not call it; `partly_open`: not for some models; or `closed`."""
        circuits = self.circuits
        if any(circuit.model is None for circuit in circuits):
            return "open"
        if circuits:
            return "partly_open"
        return "closed" if self.states else "unknown"

    @property
    def circuits(self) -> list[OpenCircuit]:
        """Those that are open."""
        return [circuit for state in self.states for circuit in state.circuits]

    @property
    def running(self) -> int:
        """Calls."""
        return sum(state.running for state in self.states)

    @property
    def waiting(self) -> int:
        """Calls that wait for one of these to end."""
        return sum(state.waiting for state in self.states)

    @property
    def limit(self) -> int | None:
        """Calls at a time of all workers; None: as many as they have slots."""
        limits = [state.limit for state in self.states if state.limit is not None]
        return sum(limits) or None

    @property
    def last_failure(self) -> tuple[str, datetime] | None:
        """The reason of the call that failed last, and when; None: none has failed."""
        failed = [state for state in self.states if state.last_reason is not None]
        if not failed:
            return None
        last = max(failed, key=lambda state: state.last_failed_at)
        return str(last.last_reason), datetime.fromtimestamp(last.last_failed_at, UTC)


async def show_upstreams(visit: Visit) -> Response:
    """The upstreams: their circuits, how many calls run of how many, and the last failure."""
    return await _upstreams_page(visit, None, None)


async def check(visit: Visit) -> Response:
    """Asks one upstream for its models, and shows the page with its answer."""
    fields = await visit.form(visit.user.token)
    upstream = visit.state.routes.server.upstreams.get(fields.get("name", ""))
    if upstream is None:
        raise not_found("upstream")
    await execute(
        visit.pool, RECORD, AuditEntry(visit.actor, "upstream.check", upstream.name).values()
    )
    probe = await asyncio.to_thread(probe_upstream, upstream)
    return await _upstreams_page(visit, upstream.name, probe)


async def _upstreams_page(
    visit: Visit, checked: str | None, probe: UpstreamProbe | None
) -> Response:
    workers = await fetch_idempotent(visit.pool, console.LIVE_WORKER_IDS, {})
    states: list[tuple[UpstreamState, ...]] | None = None
    with suppress(*REDIS_ERRORS):
        states = await read_states(visit.state.redis, workers)
    written = [state for of_worker in states or [] for state in of_worker]
    outages = {each.upstream: each for each in outages_of(await read_waits(visit.pool), written)}
    circuits = [circuit for state in written for circuit in state.circuits]
    return visit.page(
        "upstreams.html",
        upstreams=[
            ShownUpstream(
                settings,
                [state for state in written if state.name == name],
                outages.get(name),
            )
            for name, settings in visit.state.routes.server.upstreams.items()
        ],
        outages=[each.problem(datetime.now(UTC)) for each in outages.values()],
        projects=await project_names(visit.pool, circuits),
        workers=len(workers),
        known_of=None if states is None else len(states),
        checked=checked,
        probe=probe,
        shown_circuits=_SHOWN_CIRCUITS,
        shown_models=_SHOWN_MODELS,
    )


PAGES = (
    Page("/workers", show_workers, menu="Workers"),
    *confirmed("/workers/drain", _drain),
    Page("/upstreams", show_upstreams, menu="Upstreams"),
    Page("/upstreams/check", check, method="POST"),
)
