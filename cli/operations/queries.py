"""What the operator's commands do: each function asks one connection and returns facts; cli/report.py puts them on the screen.

Nothing here touches a response: requests are recorded, and the owner or a sweep acts on them (design §4.2).
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from cli.operations.diagnosis import diagnose, seconds_between
from cli.operations.timeline import TimelineEvent, timeline
from models.db.database import SyncConnection, fetch_sync
from models.db.queries import operations
from models.db.queries.leases import LIVE_WORKERS
from models.ids import conversation_id, parse_response_id, response_id
from models.lifecycle import TERMINAL
from models.redis.channels import queue_for

MAX_LISTED = 200
"""Responses that `stuck` shows; more are only mentioned."""
_POLL_INTERVAL = 0.1
"""Seconds between two looks at whether a request has been acted on."""
_MIN_PREFIX_LENGTH = 6

Database = SyncConnection
PolledT = TypeVar("PolledT")


class RequestRefused(Exception):
    """There is no such thing, or what was asked for is impossible. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class ResponseState:
    """One response as it is now. Durations in seconds."""

    id: str
    status: str
    state: str
    """one of diagnosis.py's words"""
    why: str
    background: bool
    model: str
    conversation: str | None
    queue: str
    attempt: int
    deaths: int
    """owners that died since its last checkpoint"""
    turns: int
    rings: int
    worker: UUID | None
    idle_seconds: float
    """since the last progress; to its end for one that has ended"""
    created_at: datetime
    completed_at: datetime | None
    deadline: datetime
    reason: str | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim, and how it parted: null while it runs, and when it ended the response."""

    attempt: int
    worker: UUID
    kind: str
    host: str
    pid: int
    claimed_at: datetime
    turns: int
    outcome: str | None
    ended_at: datetime | None
    first_event: int | None
    last_event: int | None
    flushes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything the rows tell about one response."""

    response: ResponseState
    journalled: int | None
    """the last event shown to readers that no flush holds yet"""
    attempts: list[Attempt]
    timeline: list[TimelineEvent]


@dataclass(frozen=True, slots=True)
class StuckResponses:
    """Responses without progress, the longest first. `more`: there are others beyond those listed."""

    idle_seconds: float
    responses: list[ResponseState]
    more: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process. `state`: live, draining, silent (its lease ran out, not yet declared dead) or dead."""

    id: UUID
    kind: str
    host: str
    pid: int
    state: str
    started_at: datetime
    lease_seconds: float
    """left of its lease; negative since it ran out"""
    running: int
    """responses it owns"""
    ended: str | None


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request on a response. `acted`: somebody has done it already."""

    id: str
    request: str
    acted: bool
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A process that was asked to go."""

    id: UUID
    kind: str
    host: str
    pid: int
    gone: bool


def explain(database: Database, id_text: str) -> Explanation:
    """A response's timeline. Raises Refused when there is none of that id."""
    row = _response_row(database, id_text)
    response = {"id": row.id}
    attempts = fetch_sync(database, operations.ATTEMPTS, response)
    stored = fetch_sync(database, operations.LOG_SUMMARY, response)
    blocks = {block.attempt: block for block in stored}
    return Explanation(
        response=_response_state(row, _live_counts(database)),
        journalled=fetch_sync(database, operations.LAST_JOURNALLED, response)[0].last,
        attempts=[_attempt(attempt, blocks.get(attempt.attempt)) for attempt in attempts],
        timeline=timeline(row, attempts, stored),
    )


def stuck(database: Database, idle: float) -> StuckResponses:
    """The open responses without progress for longer than `idle` seconds."""
    rows = fetch_sync(
        database, operations.STUCK, {"idle": timedelta(seconds=idle), "max_rows": MAX_LISTED + 1}
    )
    live = _live_counts(database)
    return StuckResponses(
        idle, [_response_state(row, live) for row in rows[:MAX_LISTED]], more=len(rows) > MAX_LISTED
    )


def workers(database: Database, since: float) -> list[ProcessState]:
    """The living, then those that died within `since` seconds."""
    return [
        _process_state(row)
        for row in fetch_sync(database, operations.WORKERS, {"since": timedelta(seconds=since)})
    ]


def requeue(database: Database, id_text: str, wait: float) -> OperatorRequest:
    """Asks that another worker go on with a response; waits up to `wait` seconds for it to be given back or rung."""
    return _record_request(
        database,
        id_text,
        "requeue",
        wait,
        lambda row: row.requeue_requested_at is None or row.status in TERMINAL,
    )


def fail(database: Database, id_text: str, wait: float) -> OperatorRequest:
    """Asks that a response end as failed; waits up to `wait` seconds for its end. Raises Refused also when another ending came first."""
    done = _record_request(database, id_text, "fail", wait, lambda row: row.status in TERMINAL)
    if done.acted and done.status != "failed":
        raise RequestRefused(f"{done.id} ended as {done.status} before the request was seen")
    return done


def drain(database: Database, name: str, wait: float) -> list[DrainResult]:
    """Asks processes to hand over and go: by an id, the beginning of one, or a host's name. Waits up to `wait` seconds for their end."""
    meant = [
        row
        for row in fetch_sync(
            database, operations.FIND_WORKERS, {"name": name, "prefix": _prefix(name)}
        )
        if not row.dead
    ]
    if not meant:
        raise RequestRefused(
            f"no live process has the id or host name {name}; `backburner workers` lists them"
        )
    if len(meant) > 1 and any(row.host != name for row in meant):
        raise RequestRefused(
            f"{name} is the beginning of {len(meant)} processes' ids; give more of it"
        )
    ids = [row.id for row in meant]
    fetch_sync(database, operations.REQUEST_DRAIN, {"ids": ids})
    left = _poll_until(
        lambda: set(fetch_sync(database, operations.STILL_RUNNING, {"ids": ids})),
        lambda those: not those,
        wait,
    )
    return [
        DrainResult(row.id, row.kind, row.host, row.pid, gone=row.id not in left) for row in meant
    ]


def _record_request(
    database: Database,
    id_text: str,
    what: str,
    wait: float,
    is_done: Callable[[operations.ResponseState], bool],
) -> OperatorRequest:
    row = _response_row(database, id_text)
    statement = operations.REQUEST_FAIL if what == "fail" else operations.REQUEST_REQUEUE
    if not fetch_sync(database, statement, {"id": row.id}):
        raise RequestRefused(_why_refused(_response_row(database, id_text)))
    row = _poll_until(lambda: _response_row(database, id_text), is_done, wait)
    return OperatorRequest(
        response_id(row.id),
        what,
        is_done(row),
        row.status,
        diagnose(row, _live_counts(database)).why,
    )


def _why_refused(row: operations.ResponseState) -> str:
    name = response_id(row.id)
    if row.status in TERMINAL:
        return f"{name} has ended already, as {row.status}"
    if row.cancel_requested_at is not None:
        return f"a cancel of {name} is recorded, and no other ending is possible"
    return f"somebody has asked for {name} to fail"


def _poll_until(
    poll: Callable[[], PolledT], is_done: Callable[[PolledT], bool], wait: float
) -> PolledT:
    """What the last look saw: the first that is enough, or the one after `wait` seconds."""
    deadline = time.monotonic() + wait
    while not is_done(seen := poll()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    return seen


def _response_row(database: Database, id_text: str) -> operations.ResponseState:
    wanted = _response_id(id_text)
    found = fetch_sync(database, operations.STATE, {"id": wanted}) if wanted else []
    if not found:
        raise RequestRefused(
            f"there is no response {id_text[:100]}: it never was, or its retention is over"
        )
    return found[0]


def _response_id(id_text: str) -> UUID | None:
    """As clients see it, `resp_…`, or as logs write it: a UUID."""
    try:
        return parse_response_id(id_text) or UUID(id_text)
    except ValueError:
        return None


def _prefix(name: str) -> str | None:
    digits = name.replace("-", "").lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX_LENGTH},32}}", digits) else None


def _live_counts(database: Database) -> dict[str, int]:
    return {row.kind: row.live for row in fetch_sync(database, LIVE_WORKERS, {})}


def _response_state(row: operations.ResponseState, live: Mapping[str, int]) -> ResponseState:
    diagnosis = diagnose(row, live)
    return ResponseState(
        id=response_id(row.id), status=row.status, state=diagnosis.state, why=diagnosis.why, background=row.background,
        model=row.model, conversation=conversation_id(row.conversation_id) if row.conversation_id is not None else None, queue=queue_for(background=row.background, crashes=row.crashes), attempt=row.attempt,
        deaths=row.crashes, turns=row.turns, rings=row.enqueue_count, worker=row.worker,
        idle_seconds=round(seconds_between(row.progressed_at, row.now), 3), created_at=row.created_at,
        completed_at=row.completed_at, deadline=row.deadline, reason=row.reason, error=row.error,
    )  # fmt: skip


def _attempt(row: operations.AttemptRow, block: operations.LogSummary | None) -> Attempt:
    return Attempt(
        attempt=row.attempt, worker=row.worker, kind=row.kind, host=row.host, pid=row.pid, claimed_at=row.claimed_at,
        turns=len(row.turns_ended_at), outcome=row.outcome, ended_at=row.ended_at,
        first_event=block.first if block else None, last_event=block.last if block else None,
        flushes=block.blocks if block else 0, bytes=block.bytes if block else 0,
    )  # fmt: skip


def _process_state(row: operations.WorkerRow) -> ProcessState:
    left = (row.expires_at - row.now).total_seconds()
    state = (
        "dead"
        if row.dead
        else "silent"
        if left < 0
        else "draining"
        if row.drain_requested_at
        else "live"
    )
    return ProcessState(
        id=row.id, kind=row.kind, host=row.host, pid=row.pid, state=state, started_at=row.started_at,
        lease_seconds=round(left, 3), running=row.running, ended=row.ended,
    )  # fmt: skip
