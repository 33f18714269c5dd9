"""The upstreams: their circuits, how many calls run of how many, the last failure, and a check."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import Response

from features.console.changes import first, not_found
from features.console.overview import LOOKED_AT
from features.console.page import Page
from features.console.visit import Visit
from models.config.upstream import UpstreamSettings
from models.db.database import execute, fetch_idempotent
from models.db.queries import console
from models.db.queries.audit import RECORD, AuditEntry
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import OpenCircuit, UpstreamState, read_states
from models.upstream_probe import UpstreamProbe, probe_upstream

_SHOWN_CIRCUITS = 20
_SHOWN_MODELS = 50


@dataclass(frozen=True, slots=True)
class ShownUpstream:
    """An upstream as all workers together know it."""

    settings: UpstreamSettings
    states: Sequence[UpstreamState]
    """one for each worker that has written one"""
    waits: Sequence[console.UpstreamWait]
    """responses that wait because it failed"""

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


async def show(visit: Visit) -> Response:
    """The page."""
    return await _page(visit, None, None)


async def check(visit: Visit) -> Response:
    """Asks one upstream for its models, and shows the page with its answer."""
    fields = await visit.form(visit.user.token)
    upstream = visit.state.routes.server.upstreams.get(first(fields, "name"))
    if upstream is None:
        raise not_found("upstream")
    await execute(
        visit.pool, RECORD, AuditEntry(visit.actor, "upstream.check", upstream.name).values()
    )
    probe = await asyncio.to_thread(probe_upstream, upstream)
    return await _page(visit, upstream.name, probe)


async def _page(visit: Visit, checked: str | None, probe: UpstreamProbe | None) -> Response:
    limit = {"max_rows": LOOKED_AT}
    waits = await fetch_idempotent(visit.pool, console.UPSTREAM_WAITS, limit)
    workers = await fetch_idempotent(visit.pool, console.LIVE_WORKER_IDS, {})
    states: list[tuple[UpstreamState, ...]] | None = None
    with suppress(*REDIS_ERRORS):
        states = await read_states(visit.state.redis, workers)
    written = [state for of_worker in states or [] for state in of_worker]
    return visit.page(
        "upstreams.html",
        upstreams=[
            ShownUpstream(
                settings,
                [state for state in written if state.name == name],
                [wait for wait in waits if wait.upstream == name],
            )
            for name, settings in visit.state.routes.server.upstreams.items()
        ],
        workers=len(workers),
        known_of=None if states is None else len(states),
        checked=checked,
        probe=probe,
        shown_circuits=_SHOWN_CIRCUITS,
        shown_models=_SHOWN_MODELS,
    )


PAGES = (
    Page("/upstreams", show),
    Page("/upstreams/check", check, method="POST"),
)
