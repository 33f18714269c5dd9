"""The results of the operator's commands. Their fields are the keys of `--json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from features.operator.diagnosis import diagnose, seconds_between
from features.operator.rows import fact
from features.operator.timeline import TimelineEvent
from models.db.queries import listing, operations
from models.db.queries.leases import STOPPED
from models.db.queries.line import PlaceInLine
from models.ids import conversation_id, response_id
from models.redis.channels import queue_for


@dataclass(frozen=True, slots=True)
class CurrentResponse:
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
    crashes: int
    """owners that crashed since its last checkpoint"""
    turns: int
    enqueue_count: int
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
    def from_row(
        cls,
        row: operations.ResponseState,
        live: Mapping[str, int],
        place: PlaceInLine | None = None,
    ) -> Self:
        """`live` counts the live processes by kind. `place`: as in `diagnose`."""
        diagnosis = diagnose(row, live, place)
        return fact(
            cls,
            row,
            id=response_id(row.id),
            state=diagnosis.state,
            why=diagnosis.why,
            conversation=conversation_id(row.conversation_id) if row.conversation_id else None,
            queue=queue_for(background=row.background, crashes=row.crashes),
            idle_seconds=round(seconds_between(row.progressed_at, row.now), 3),
        )


@dataclass(frozen=True, slots=True)
class AttemptFacts:
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
    failures: list[dict[str, Any]] | None
    """`upstream`, `reason`, `message` of each call that failed; a deferred attempt waited for the
    last one. The reason `unknown_content`: the answer had content in the fields that `message`
    names, which nobody knows"""

    @classmethod
    def from_rows(cls, row: operations.AttemptRow, block: operations.LogSummary | None) -> Self:
        """`block` sums up the attempt's events; None if it stored none."""
        return fact(
            cls,
            row,
            turns=len(row.turns_ended_at),
            first_event=block.first if block else None,
            last_event=block.last if block else None,
            flushes=block.blocks if block else 0,
            bytes=block.bytes if block else 0,
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened to one response."""

    response: CurrentResponse
    journalled: int | None
    """the last event that was published and not yet flushed"""
    attempts: list[AttemptFacts]
    timeline: list[TimelineEvent]


@dataclass(frozen=True, slots=True)
class StuckResponses:
    """Responses without progress, the longest first. `more`: there are others that are not
    listed."""

    idle_seconds: float
    responses: list[CurrentResponse]
    more: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process. `state`: live, draining, silent (its lease expired, not yet reaped), stopped (it
    ended by itself, and had released everything) or dead."""

    id: UUID
    kind: str
    host: str
    pid: int
    state: str
    started_at: datetime
    age_seconds: float
    """since its start"""
    lease_seconds: float
    """time left of its lease; negative after its expiry"""
    running: int
    """responses it owns"""
    slots: int | None
    """responses that it runs at most; null: it states none"""
    version: str | None
    """the release that it runs"""
    ended: str | None

    @classmethod
    def from_row(cls, row: operations.WorkerRow) -> Self:
        seconds_left = (row.expires_at - row.now).total_seconds()
        return fact(
            cls,
            row,
            state=_process_state(row, seconds_left),
            age_seconds=round(seconds_between(row.started_at, row.now), 3),
            lease_seconds=round(seconds_left, 3),
        )


def _process_state(row: operations.WorkerRow, seconds_left: float) -> str:
    if row.dead:
        return "stopped" if row.ended == STOPPED else "dead"
    if seconds_left < 0:
        return "silent"
    return "draining" if row.drain_requested_at else "live"


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request about a response. `acted`: a process has acted on it. `refused`: it is impossible,
    or came too late."""

    id: str
    request: str
    acted: bool
    refused: bool
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


@dataclass(frozen=True, slots=True)
class ListedResponse:
    """A response in a list. Durations in seconds."""

    id: str
    status: str
    background: bool
    project: str
    model: str
    upstream: str | None
    reason: str | None
    attempt: int
    input_tokens: int | None
    output_tokens: int | None
    created_at: datetime
    completed_at: datetime | None
    age_seconds: float
    """since its creation"""
    run_seconds: float | None
    """from its first claim to its end, or until now; null: no worker has claimed it"""

    @classmethod
    def from_row(cls, row: listing.ListedResponseRow) -> Self:
        usage = row.usage or {}
        started_at = row.started_at
        return fact(
            cls,
            row,
            id=response_id(row.id),
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            age_seconds=round(seconds_between(row.created_at, row.now), 3),
            run_seconds=None
            if started_at is None
            else round(seconds_between(started_at, row.ended_at or row.now), 3),
        )


@dataclass(frozen=True, slots=True)
class ResponseList:
    """The newest responses first. `more`: others fit too, and are not listed."""

    responses: list[ListedResponse]
    more: bool
    since_seconds: float | None
    """older ones were not looked at; null: all were"""


@dataclass(frozen=True, slots=True)
class ResponseReport:
    """What a response's row says, and what it does or waits for now."""

    id: str
    status: str
    why: str
    background: bool
    project: str
    model: str
    upstream: str | None
    reason: str | None
    error: dict[str, Any] | None
    attempt: int
    turns: int
    input_tokens: int | None
    output_tokens: int | None
    input_items: int
    output_items: int
    """those that are stored: all of a response that has ended, else those of finished turns"""
    tool_calls: int
    store: bool
    deleted: bool
    previous_response: str | None
    conversation: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deadline: datetime
    expires_at: datetime
    output: list[dict[str, Any]] | None
    """the output items; null unless they were requested"""

    @classmethod
    def from_row(
        cls, row: listing.ResponseDetails, why: str, output: list[dict[str, Any]] | None
    ) -> Self:
        usage = row.usage or {}
        previous, conversation = row.previous_response_id, row.conversation_id
        return fact(
            cls,
            row,
            id=response_id(row.id),
            why=why,
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            previous_response=response_id(previous) if previous else None,
            conversation=conversation_id(conversation) if conversation else None,
            output=output,
        )
