"""What responses run on: processes with their slots, and upstreams with their circuits; and one
sentence for each upstream that fails now, with the cause and what waits for it."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from redis.asyncio import Redis
from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.page import Change, Page, Problem, Visit, confirmed, not_found
from features.operator import service
from features.operator.diagnosis import cause_text, process_text
from models.config.upstream import UpstreamSettings
from models.db.database import Connection, Pool, execute, fetch_idempotent
from models.db.queries import console, operations
from models.db.queries.audit import RECORD, AuditEntry
from models.db.queries.common import UPSTREAM_FULL
from models.ids import PROJECT, parse_admin_id
from models.lifecycle import OperatorStatus
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import OpenCircuit, UpstreamState, read_states
from models.time_text import format_seconds, seconds_between
from models.upstream_probe import UpstreamProbe, probe_upstream

MAX_COUNTED = 10_000
"""Responses of one upstream that are counted."""
_MAX_MODELS = 3
_UNTRIED = "Nothing has called it lately; the next call is a try."


@dataclass(frozen=True, slots=True)
class Outage:
    """An upstream that fails, or is full: what waits for it, and the circuits that are open."""

    upstream: str
    wait: console.UpstreamWait | None
    """None: nothing waits"""
    circuits: Sequence[OpenCircuit]

    @property
    def is_full(self) -> bool:
        """It does not fail: as many calls run there as are allowed."""
        is_only_full = self.wait is not None and self.wait.reason == UPSTREAM_FULL
        return is_only_full and not self.circuits

    @property
    def is_over(self) -> bool:
        """Nothing waits for it and nothing calls it: it may be well again."""
        return self.wait is None and not any(each.seconds for each in self.circuits)

    @property
    def since(self) -> datetime | None:
        """The first failure that still has consequences."""
        times = [datetime.fromtimestamp(each.since, UTC) for each in self.circuits if each.since]
        if self.wait is not None:
            times.append(self.wait.since)
        return min(times, default=None)

    @property
    def link(self) -> str:
        """Below the console: exactly what waits."""
        if self.wait is None:
            return "/upstreams"
        wanted = {"status": OperatorStatus.RETRYING.value, "upstream": self.upstream}
        return f"/responses?{urlencode(wanted)}"

    def problem(self, now: datetime) -> Problem:
        """The sentence for operators."""
        return Problem(self.text(now), self.link, is_note=self.is_full or self.is_over)

    def text(self, now: datetime) -> str:
        """As `gpu-2 fails since 13:07 UTC (HTTP 500: out of memory). 3 responses of pay wait. Next
        try in 14 s.`"""
        since = "" if self.since is None else f" since {_clock_time(self.since, now)}"
        if self.is_over:
            # A circuit closes only when a call succeeds.
            return f"{self.upstream} has failed{self._models}{since} ({self._cause}). {_UNTRIED}"
        does = "is at its limit of calls" if self.is_full else f"fails{self._models}"
        cause = "" if self.is_full else f" ({self._cause})"
        return f"{self.upstream} {does}{since}{cause}. {self._waiting} {self._next_try(now)}"

    @property
    def _models(self) -> str:
        """If it fails for some models only; what waits may be of others."""
        if self.wait is not None:
            return ""
        models = {each.model for each in self.circuits}
        if not models or None in models or len(models) > _MAX_MODELS:
            return ""
        return f" for {', '.join(sorted(filter(None, models)))}"

    @property
    def _cause(self) -> str:
        wait = self.wait
        if wait is None or wait.message is None:
            return self.circuits[0].reason if self.circuits else "the failure is not stored"
        return cause_text(wait.message)

    @property
    def _waiting(self) -> str:
        if self.wait is None:
            return "No background response waits."
        count, names = self.wait.responses, self.wait.projects
        more = "+" if count >= MAX_COUNTED else ""
        whose = f"{self.wait.project_count} projects"
        if self.wait.project_count <= len(names):
            whose = ", ".join(names)
        waits = "response of {} waits" if count == 1 else "responses of {} wait"
        return f"{count}{more} {waits.format(whose)}."

    def _next_try(self, now: datetime) -> str:
        if self.wait is None:
            seconds = min(each.seconds for each in self.circuits if each.seconds)
        elif self.wait.next_try_at is None:
            return "It is tried now."
        else:
            seconds = seconds_between(now, self.wait.next_try_at)
        return f"Next try in {format_seconds(seconds)}."


def _clock_time(at: datetime, now: datetime) -> str:
    """The time; with the day if that is another one."""
    is_today = now - at < timedelta(days=1) and now.date() == at.astimezone(UTC).date()
    return at.astimezone(UTC).strftime("%H:%M UTC" if is_today else "%d %b %H:%M UTC")


def outages_of(
    waits: Sequence[console.UpstreamWait], states: Sequence[UpstreamState]
) -> list[Outage]:
    """One for each upstream that fails or is full, those with most that waits first."""
    circuits = defaultdict[str, list[OpenCircuit]](list)
    for state in states:
        circuits[state.name] += state.circuits
    found = [Outage(wait.upstream, wait, circuits.pop(wait.upstream, ())) for wait in waits]
    return found + [Outage(name, None, each) for name, each in sorted(circuits.items()) if each]


async def read_waits(pool: Pool) -> list[console.UpstreamWait]:
    """What waits for upstreams that have failed."""
    return await fetch_idempotent(pool, console.UPSTREAM_WAITS, {"max_rows": MAX_COUNTED})


async def read_outages(pool: Pool, redis: Redis) -> list[Outage]:
    """The upstreams that fail now. Without Redis only those for which something waits."""
    workers = await fetch_idempotent(pool, console.LIVE_WORKER_IDS, {})
    states: list[UpstreamState] = []
    with suppress(*REDIS_ERRORS):
        states += [state for written in await read_states(redis, workers) for state in written]
    return outages_of(await read_waits(pool), states)


async def project_names(pool: Pool, circuits: Sequence[OpenCircuit]) -> Mapping[str, str]:
    """The names of the projects whose calls are refused, by id."""
    ids: dict[str, UUID] = {}
    for circuit in circuits:
        if circuit.project is not None:
            identifier = parse_admin_id(PROJECT, circuit.project)
            if identifier is not None:
                ids[circuit.project] = identifier
    if not ids:
        return {}
    rows = await fetch_idempotent(pool, console.PROJECT_NAMES, {"ids": list(ids.values())})
    known = {row.id: row.name for row in rows}
    return {text: known[value] for text, value in ids.items() if value in known}


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
