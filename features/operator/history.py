"""What has happened to a response, as commands and the console show it: its row, its attempts, and
the timeline that they make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from uuid import UUID

from features.operator.diagnosis import Diagnosis, diagnose, failures_text, process_text
from models.db.database import Connection, Pool, fetch_idempotent, find_by_id
from models.db.queries import operations
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.line import PLACE_OF, PlaceInLine
from models.db.queries.operations import AttemptRow, LogSummary, ResponseState
from models.errors import UNKNOWN_CONTENT
from models.ids import conversation_id, response_id
from models.lifecycle import ATTEMPTS_PER_TIMELINE, TERMINAL, Status


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`what` is one of a fixed set of codes, for programs; `text` is for people."""

    at: datetime
    what: str
    text: str
    attempt: int | None = None
    worker: UUID | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A response now, and what happened before."""

    state: ResponseState
    live: dict[str, int]
    """live processes by kind"""
    place: PlaceInLine | None
    """where it waits for a slot"""
    attempts: list[AttemptRow]
    logs: dict[int, LogSummary]
    """what each attempt has written to the log; an attempt without events is left out"""
    timeline: list[TimelineEvent]
    journalled: int | None
    """the last event that was published and not yet flushed"""

    @property
    def diagnosis(self) -> Diagnosis:
        """What it does or waits for."""
        return diagnose(self.state, self.live, self.place)

    @property
    def why(self) -> str:
        """What it does or waits for, in words."""
        return self.diagnosis.why


async def read_history(on: Pool | Connection, response: UUID) -> History | None:
    """None: there is no such response."""
    state = await find_by_id(on, operations.STATE, response)
    if state is None:
        return None
    values = {"id": response}
    attempts = await fetch_idempotent(on, operations.ATTEMPTS, values)
    stored = await fetch_idempotent(on, operations.LOG_SUMMARY, values)
    places = await fetch_idempotent(on, PLACE_OF, values)
    journalled = await fetch_idempotent(on, operations.LAST_JOURNALLED, values)
    return History(
        state,
        await live_counts(on),
        places[0] if places else None,
        attempts,
        {summary.attempt: summary for summary in stored},
        timeline(state, attempts, stored),
        journalled[0].last if journalled else None,
    )


async def live_counts(on: Pool | Connection) -> dict[str, int]:
    """How many live processes there are of each kind."""
    return {row.kind: row.live for row in await fetch_idempotent(on, LIVE_WORKERS, {})}


RELEASE_TEXTS = {
    "handed_over": "handed over by its worker, which was stopping",
    "requeued": "released at an operator's request",
    "returned": "returned without running: the reply to its claim was lost",
    "deferred": "deferred",
    "repeated": "broken off by its upstream; the turn is repeated",
    "error": "given up: an error of this server, or its worker had too little memory",
    "died": "died with its worker",
}
"""How an attempt ended that did not end the response, after its number."""


def timeline(
    row: ResponseState, attempts: Sequence[AttemptRow], stored: Sequence[LogSummary]
) -> list[TimelineEvent]:
    """A response's events in order of time."""
    blocks = {block.attempt: block for block in stored}
    events = [*_creation(row, blocks.get(0)), *_requests(row)]
    turns, previous = 0, 0
    for attempt, following in zip_longest(attempts, attempts[1:]):
        events += _dropped(attempt, previous)
        previous = attempt.attempt
        # The end of its log may be stored later: with its release, or by the attempt that follows.
        latest = row.now if following is None else following.claimed_at
        latest = min(latest, attempt.ended_at or latest)
        events += [
            replace(event, at=min(event.at, latest))
            for event in _attempt(attempt, blocks.get(attempt.attempt), turns)
        ]
        turns += len(attempt.turns_ended_at)
    if row.owner is not None and row.owner.dead:
        text = f"attempt {row.attempt} {RELEASE_TEXTS['died']}"
        events.append(TimelineEvent(row.owner.expires_at, "died", text, row.attempt, row.owner.id))
    events.sort(key=lambda event: event.at)
    if row.status in TERMINAL:
        events.append(_end(row, stored))
    return events


def _creation(row: ResponseState, opening: LogSummary | None) -> Iterator[TimelineEvent]:
    """Created, queued, and the last time it was enqueued."""
    # one statement writes both times, and `created_at` has whole seconds only
    at = min(opening.first_at, row.enqueued_at) if opening and opening.first_at else row.created_at
    kind = "background" if row.background else "foreground"
    text = f"created: {kind}, model {row.model}{_continuation_text(row)}"
    yield TimelineEvent(at, "created", text)
    if _is_precomputed(row):
        return
    yield TimelineEvent(at, "queued", "queued")
    times = row.enqueue_count + 1
    text = "enqueued" if times == 1 else f"enqueued again, {times} times in total"
    yield TimelineEvent(row.enqueued_at, "rung", text)


def _is_precomputed(row: ResponseState) -> bool:
    """Whether it was stored already completed: a cached answer or a warm-up."""
    return row.status == Status.COMPLETED and row.attempt == 0


def _continuation_text(row: ResponseState) -> str:
    """What it continues."""
    if row.conversation_id is not None:
        return f", in {conversation_id(row.conversation_id)}"
    if row.previous_response_id is not None:
        return f", after {response_id(row.previous_response_id)}"
    return ""


def _requests(row: ResponseState) -> Iterator[TimelineEvent]:
    """The recorded requests of clients and operators."""
    for what, at, text in (
        ("cancel_requested", row.cancel_requested_at, "a cancel was recorded"),
        ("fail_requested", row.fail_requested_at, "an operator asked for it to fail"),
        ("requeue_requested", row.requeue_requested_at, "an operator asked for it to be requeued"),
        ("delete_requested", row.delete_requested_at, "deleted; the API does not show it any more"),
    ):
        if at is not None:
            yield TimelineEvent(at, what, text)


def _dropped(attempt: AttemptRow, previous: int) -> Iterator[TimelineEvent]:
    """The attempts between two that are stored: they were deferred, and a later deferral has
    replaced them (models/db/queries/run.py, RELEASE)."""
    first, last = previous + 1, attempt.attempt - 1
    if first <= last and first // ATTEMPTS_PER_TIMELINE == last // ATTEMPTS_PER_TIMELINE:
        which = f"attempt {first} was" if first == last else f"attempts {first}-{last} were"
        text = f"{which} deferred too; of deferrals in a row the first and the last are stored"
        yield TimelineEvent(attempt.claimed_at, "deferred_before", text)


def _attempt(attempt: AttemptRow, block: LogSummary | None, turns: int) -> Iterator[TimelineEvent]:
    """An attempt: claim, turns, stored events, and how it was released."""
    number, worker = attempt.attempt, attempt.worker

    def event(at: datetime, what: str, text: str) -> TimelineEvent:
        return TimelineEvent(at, what, f"attempt {number}{text}", number, worker)

    owner = process_text(attempt.kind, attempt.pid, attempt.host)
    yield event(attempt.claimed_at, "claimed", f": claimed by {owner}")
    for turn, at in enumerate(attempt.turns_ended_at, turns + 1):
        yield event(at, "turn", f": turn {turn} was stored")
    if block is not None and block.first_at is not None and block.last_at is not None:
        yield event(block.first_at, "first_flush", ": its first events were stored")
        flushes = "1 flush" if block.blocks == 1 else f"{block.blocks} flushes"
        text = f": events {block.first}-{block.last} in {flushes}, {block.bytes} bytes"
        if block.longest_pause is not None:
            text += f"; the longest pause was {block.longest_pause:.1f} s"
        yield event(block.last_at, "last_flush", text)
    if attempt.failures and attempt.outcome is None:
        failed_at = block.last_at if block is not None and block.last_at else attempt.claimed_at
        is_failure = any(call["reason"] != UNKNOWN_CONTENT for call in attempt.failures)
        what = "upstream_failed" if is_failure else UNKNOWN_CONTENT
        yield event(failed_at, what, f": {failures_text(attempt.failures)}")
    if attempt.outcome is not None and attempt.ended_at is not None:
        text = f" {RELEASE_TEXTS[attempt.outcome]}"
        if attempt.outcome in ("deferred", "repeated"):
            text += f": {failures_text(attempt.failures)}"
        yield event(attempt.ended_at, attempt.outcome, text)


def _end(row: ResponseState, stored: Sequence[LogSummary]) -> TimelineEvent:
    """The end, at the time of the last block, which has the terminal event.

    `completed_at` would have whole seconds only.
    """
    at = max(
        (block.last_at for block in stored if block.last_at is not None),
        default=row.completed_at or row.now,
    )
    cause = ", ".join(filter(None, (row.reason, (row.error or {}).get("message"))))
    if _is_precomputed(row):
        cause = "answered from the cache, or a warm-up"
    text = f"ended as {row.status}{f' ({cause})' if cause else ''}"
    if row.upstream:
        text += f"; its last turn was answered by the upstream {row.upstream}"
    return TimelineEvent(at, "ended", text, row.attempt or None)
