"""A response's life in order, from what its rows say. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cli.operations.diagnosis import process_text
from models.db.queries.operations import AttemptRow, LogSummary, ResponseState
from models.ids import conversation_id, response_id
from models.lifecycle import TERMINAL, Status


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`what` is one of a fixed set of words, for programs; `text` for people."""

    at: datetime
    what: str
    text: str
    attempt: int | None = None
    worker: UUID | None = None


_RELEASE_TEXTS = {
    "handed_over": "handed over by its worker, which was stopping",
    "requeued": "given back, as an operator had asked",
    "returned": "given back unrun: the answer to its claim had been lost",
    "deferred": "deferred: its upstreams were down or at their limit",
    "died": "died with its worker, whose lease ran out",
}
_REQUEST_TEXTS = {
    "cancel_requested": "a cancel was recorded",
    "fail_requested": "an operator asked for it to fail",
    "requeue_requested": "an operator asked for it to be requeued",
    "delete_requested": "deleted; from here on the API does not know it",
}


def timeline(
    row: ResponseState, attempts: Sequence[AttemptRow], stored: Sequence[LogSummary]
) -> list[TimelineEvent]:
    """A response's events in order of time."""
    blocks = {block.attempt: block for block in stored}
    opening = blocks.get(0)
    # Both are written by the statement that creates it; `created_at` has whole seconds.
    born = (
        min(opening.first_at, row.enqueued_at) if opening and opening.first_at else row.created_at
    )
    kind = "background" if row.background else "foreground"
    rung = (
        "its bell was rung"
        if row.enqueue_count == 0
        else f"its bell was rung again, {row.enqueue_count + 1} times in all since it was queued"
    )
    # Nobody has ever run it: a remembered answer, or a warm-up (web/responses/precomputed.py).
    was_known = row.status == Status.COMPLETED and row.attempt == 0
    moments = [
        TimelineEvent(
            born, "created", f"created: {kind}, model {row.model}{_continuation_text(row)}"
        ),
        *(
            []
            if was_known
            else [
                TimelineEvent(born, "queued", "queued"),
                TimelineEvent(row.enqueued_at, "rung", rung),
            ]
        ),
        *(
            TimelineEvent(at, what, _REQUEST_TEXTS[what])
            for what, at in (
                ("cancel_requested", row.cancel_requested_at),
                ("fail_requested", row.fail_requested_at),
                ("requeue_requested", row.requeue_requested_at),
                ("delete_requested", row.delete_requested_at),
            )
            if at is not None
        ),
    ]
    turns = 0
    for attempt in attempts:
        moments += _attempt(attempt, blocks.get(attempt.attempt), turns)
        turns += len(attempt.turns_ended_at)
    if row.owner is not None and row.owner.dead:
        text = f"attempt {row.attempt} {_RELEASE_TEXTS['died']}"
        moments.append(TimelineEvent(row.owner.expires_at, "died", text, row.attempt, row.owner.id))
    moments.sort(key=lambda moment: moment.at)
    if row.status in TERMINAL:
        moments.append(_end_event(row, stored))
    return moments


def _continuation_text(row: ResponseState) -> str:
    """What it goes on from."""
    if row.conversation_id is not None:
        return f", in {conversation_id(row.conversation_id)}"
    return (
        f", after {response_id(row.previous_response_id)}"
        if row.previous_response_id is not None
        else ""
    )


def _attempt(attempt: AttemptRow, block: LogSummary | None, turns: int) -> Iterator[TimelineEvent]:
    number, worker = attempt.attempt, attempt.worker
    who = process_text(attempt.kind, attempt.pid, attempt.host)
    yield TimelineEvent(
        attempt.claimed_at, "claimed", f"attempt {number}: claimed by {who}", number, worker
    )
    for turn, at in enumerate(attempt.turns_ended_at, turns + 1):
        yield TimelineEvent(at, "turn", f"attempt {number}: turn {turn} was stored", number, worker)
    if block is not None and block.first_at is not None and block.last_at is not None:
        pause = (
            f"; the longest pause was {block.longest_pause:.1f} s"
            if block.longest_pause is not None
            else ""
        )
        yield TimelineEvent(
            block.first_at,
            "first_flush",
            f"attempt {number}: its first events were stored",
            number,
            worker,
        )
        said = f"events {block.first}-{block.last} in {block.blocks} flushes, {block.bytes} bytes{pause}"
        yield TimelineEvent(
            block.last_at, "last_flush", f"attempt {number}: {said}", number, worker
        )
    if attempt.outcome is not None and attempt.ended_at is not None:
        yield TimelineEvent(
            attempt.ended_at,
            attempt.outcome,
            f"attempt {number} {_RELEASE_TEXTS[attempt.outcome]}",
            number,
            worker,
        )


def _end_event(row: ResponseState, stored: Sequence[LogSummary]) -> TimelineEvent:
    """Its time is that of the last block, which holds the terminal event; `completed_at` has whole seconds."""
    last = max(
        (block.last_at for block in stored if block.last_at is not None),
        default=row.completed_at or row.now,
    )
    because = ", ".join(filter(None, (row.reason, (row.error or {}).get("message"))))
    whose = f"; its last turn was answered by the upstream {row.upstream}" if row.upstream else ""
    if row.status == Status.COMPLETED and row.attempt == 0:
        because = "its answer was known when it was created"
    return TimelineEvent(
        last,
        "ended",
        f"ended as {row.status}{f' ({because})' if because else ''}{whose}",
        row.attempt or None,
    )
