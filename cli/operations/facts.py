"""The results of the operator's commands. Their fields are the keys of `--json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from cli.operations.diagnosis import diagnose, seconds_between
from cli.operations.timeline import TimelineEvent
from models.db.queries import operations
from models.ids import conversation_id, response_id
from models.redis.channels import queue_for


@dataclass(frozen=True, slots=True)
class ResponseState:
    """One response now. Durations in seconds."""

    id: str
    status: str
    state: str
    """a code of diagnosis.py"""
    why: str
    background: bool
    model: str
    conversation: str | None
    queue: str
    attempt: int
    deaths: int
    """owners that crashed since its last checkpoint"""
    turns: int
    rings: int
    """how often it was enqueued again"""
    worker: UUID | None
    idle_seconds: float
    """since its last progress; of an ended response, until its end"""
    created_at: datetime
    completed_at: datetime | None
    deadline: datetime
    reason: str | None
    error: dict[str, Any] | None

    @classmethod
    def from_row(cls, row: operations.ResponseState, live: Mapping[str, int]) -> Self:
        """`live` counts the live processes by kind."""
        diagnosis = diagnose(row, live)
        return cls(
            id=response_id(row.id),
            status=row.status,
            state=diagnosis.state,
            why=diagnosis.why,
            background=row.background,
            model=row.model,
            conversation=conversation_id(row.conversation_id) if row.conversation_id else None,
            queue=queue_for(background=row.background, crashes=row.crashes),
            attempt=row.attempt,
            deaths=row.crashes,
            turns=row.turns,
            rings=row.enqueue_count,
            worker=row.worker,
            idle_seconds=round(seconds_between(row.progressed_at, row.now), 3),
            created_at=row.created_at,
            completed_at=row.completed_at,
            deadline=row.deadline,
            reason=row.reason,
            error=row.error,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim. `outcome` is null while it runs, and if it ended the response."""

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

    @classmethod
    def from_rows(cls, row: operations.AttemptRow, block: operations.LogSummary | None) -> Self:
        """`block` sums up the attempt's events; None if it stored none."""
        return cls(
            attempt=row.attempt,
            worker=row.worker,
            kind=row.kind,
            host=row.host,
            pid=row.pid,
            claimed_at=row.claimed_at,
            turns=len(row.turns_ended_at),
            outcome=row.outcome,
            ended_at=row.ended_at,
            first_event=block.first if block else None,
            last_event=block.last if block else None,
            flushes=block.blocks if block else 0,
            bytes=block.bytes if block else 0,
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened to one response."""

    response: ResponseState
    journalled: int | None
    """the last event that was published and not yet flushed"""
    attempts: list[Attempt]
    timeline: list[TimelineEvent]


@dataclass(frozen=True, slots=True)
class StuckResponses:
    """Responses without progress, the longest first. `more`: there are others that are not
    listed."""

    idle_seconds: float
    responses: list[ResponseState]
    more: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process. `state`: live, draining, silent (its lease expired, not yet reaped) or dead."""

    id: UUID
    kind: str
    host: str
    pid: int
    state: str
    started_at: datetime
    lease_seconds: float
    """time left of its lease; negative after its expiry"""
    running: int
    """responses it owns"""
    ended: str | None

    @classmethod
    def from_row(cls, row: operations.WorkerRow) -> Self:
        seconds_left = (row.expires_at - row.now).total_seconds()
        return cls(
            id=row.id,
            kind=row.kind,
            host=row.host,
            pid=row.pid,
            state=_process_state(row, seconds_left),
            started_at=row.started_at,
            lease_seconds=round(seconds_left, 3),
            running=row.running,
            ended=row.ended,
        )


def _process_state(row: operations.WorkerRow, seconds_left: float) -> str:
    if row.dead:
        return "dead"
    if seconds_left < 0:
        return "silent"
    return "draining" if row.drain_requested_at else "live"


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request about a response. `acted`: a process has acted on it."""

    id: str
    request: str
    acted: bool
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A process that was asked to exit. `gone`: it has exited."""

    id: UUID
    kind: str
    host: str
    pid: int
    gone: bool
