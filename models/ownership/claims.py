"""Who runs a response: take, checkpoint, end, release.

`Ownership.take` is the only way to become a response's owner, and it is one transaction: it claims
the row; in a later statement it reads the end of the event log and the journal of the *previous*
owner, and appends what is missing. If the transaction rolls back, the previous owner stays
recorded.

Every write here may be repeated. When a reply was lost (Postgres unavailable), the outcome is
unknown. The identical statement then detects that it was done before (`OWNERSHIP_STATE`) instead of
writing twice.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from models.config.settings import Settings
from models.db.database import (
    Connection,
    Jsonb,
    Pool,
    execute,
    fetch,
    retry_while_unavailable,
)
from models.db.queries import claim as claim_queries
from models.db.queries import end as end_queries
from models.db.queries import run as run_queries
from models.db.queries.claim import ClaimedRow, LockedOrphan
from models.db.queries.common import LogBlock
from models.db.queries.run import OwnershipState
from models.db.statement import Query
from models.errors import Cancelled, LeaseLost
from models.lifecycle import QUARANTINE_THRESHOLD, TERMINAL, Status
from models.ownership.lease import Lease
from models.wire.events import split_frames


class EndReason(StrEnum):
    """Why a response is claimed only to be ended."""

    CANCELLED = "cancelled"
    FAILED_BY_OPERATOR = "failed_by_operator"
    QUEUE_WAIT = "queue_wait"
    DEADLINE = "deadline"
    TOO_MANY_CRASHES = "too_many_deaths"


class ReleaseReason(StrEnum):
    """Why an attempt released its response, as in `attempts.outcome`. One more outcome, `died`, is
    recorded by the next owner."""

    HANDED_OVER = "handed_over"
    REQUEUED = "requeued"
    RETURNED = "returned"
    """claimed, but the reply was lost: it never ran"""
    DEFERRED = "put_off"
    """no upstream was available: no worker claims it for a while. The stored name is older; metrics
    and `--json` show it, so it stays."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A response that this process owns, and the attempt."""

    row: ClaimedRow
    log_end: int
    """the number of the last event that is stored"""
    end_reason: EndReason | None = None
    blocks: list[LogBlock] = field(default_factory=list)
    """what earlier attempts published after the last checkpoint, in order"""
    seconds_lost: float | None = None
    """since the lease of a crashed previous owner ran out; None if no owner crashed"""

    @property
    def id(self) -> UUID:
        """The id of the response."""
        return self.row.id

    @property
    def attempt(self) -> int:
        """The number of this attempt: every write is on condition that it is the current one."""
        return self.row.attempt


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log that is not in the event log yet: one block of frames with the numbers
    `first` to `last`. Empty if `first` > `last`."""

    first: int
    last: int
    frames: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `completed_at`: whole seconds since the epoch; `items`: the output from
    `position` on."""

    status: Status
    tail: Tail
    items: list[dict[str, Any]]
    position: int
    usage: dict[str, Any] | None
    completed_at: int
    turns: int = 0
    error: dict[str, Any] | None = None
    reason: str | None = None
    failure: dict[str, Any] | None = None
    changed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(position, item) of items stored at a checkpoint that have changed: calls that were
    running"""
    unanswered_calls: list[str] = field(default_factory=list)
    service_tier: str | None = None
    upstream: str | None = None
    """which upstream answered the last turn"""


@dataclass(frozen=True, slots=True)
class Step:
    """What a checkpoint stores: a turn of the model, or calls that run before its first turn."""

    items: list[dict[str, Any]]
    position: int
    """of the first item in the output"""
    calls: list[dict[str, Any]]
    """the tool calls that this server runs: position, output_index, turn, finished"""
    turns: int
    """1 for a turn of the model, else 0"""
    usage: dict[str, Any] | None
    """of the whole response so far"""
    next_output_index: int
    upstream: str | None = None
    """which upstream answered it"""


class Ownership:
    """How one worker claims, writes and releases responses. Its methods raise `LeaseLost` when the
    fence rejects a write, and repeat a write while Postgres is unavailable."""

    def __init__(self, pool: Pool, lease: Lease, settings: Settings) -> None:
        self._pool = pool
        self._me = lease.id
        self._lease = lease
        self._quarantine = settings.quarantine
        self._wall_clock = settings.limits.wall_clock

    async def take(self, response_id: UUID) -> Claim | None:
        """Claims the response. Returns None if it cannot be claimed: it has ended, a live worker
        owns it, it is deferred, or it is not for this kind of worker (quarantine). Raises what
        DATABASE_UNAVAILABLE names: the claim may then have been made."""
        parameters = {"me": self._me, "id": response_id, "wall_clock": self._wall_clock}
        if not self._quarantine:
            rows = await fetch(self._pool, claim_queries.CLAIM_FRESH, parameters)
            if rows:
                return Claim(rows[0], log_end=1 if rows[0].background else 0)
        async with self._pool.connection() as connection, connection.transaction():
            return await self._take_over(connection, parameters)

    async def _take_over(
        self, connection: Connection, parameters: Mapping[str, object]
    ) -> Claim | None:
        if not await fetch(connection, claim_queries.FENCE_ALONE, parameters):
            raise LeaseLost("this worker's lease was revoked")
        locked = await fetch(connection, claim_queries.LOCK_ORPHAN, parameters)
        if not locked:
            return None
        orphan = locked[0]
        end_reason = _end_reason(orphan)
        is_quarantined = orphan.crashes >= QUARANTINE_THRESHOLD
        if end_reason is None and is_quarantined is not self._quarantine:
            return None
        query = claim_queries.CLAIM if end_reason is None else claim_queries.CLAIM_TO_END
        claimed = await fetch(connection, query, parameters)
        if not claimed:
            return None
        row = claimed[0]
        seconds_lost = (
            await fetch(
                connection,
                claim_queries.RECORD_OWNER_DEATH,
                {"id": row.id, "attempt": row.attempt},
            )
            if orphan.worker is not None
            else []
        )
        log_end = await _recover_journal(connection, row.id, orphan.worker)
        since = {"id": row.id, "after": row.checkpoint_number}
        blocks = await fetch(connection, claim_queries.LOG_SINCE, since)
        return Claim(
            row,
            log_end=log_end,
            end_reason=end_reason,
            blocks=[block for block in blocks if block.attempt > 0],
            seconds_lost=seconds_lost[0] if seconds_lost else None,
        )

    async def end(self, claim: Claim, ending: Ending) -> None:
        """Ends the response. Raises `Cancelled` if a cancel was recorded first, `LeaseLost` if this
        process does not own the response any more."""
        values = (
            self._values(claim)
            | _log_values(ending.tail)
            | {
                "items": Jsonb(ending.items),
                "position": ending.position,
                "usage": ending.usage and Jsonb(ending.usage),
                "turns": ending.turns,
                "error": ending.error and Jsonb(ending.error),
                "reason": ending.reason,
                "failure": ending.failure and Jsonb(ending.failure),
                "completed_at": ending.completed_at,
                "unanswered_calls": ending.unanswered_calls,
                "service_tier": ending.service_tier,
                "upstream": ending.upstream,
                "changed": Jsonb(
                    [{"position": position, "item": item} for position, item in ending.changed]
                ),
            }
        )
        await self._write(
            end_queries.END[ending.status],
            values,
            is_done=lambda state: state.status in TERMINAL,
            is_blocked_by_cancel=ending.status is not Status.CANCELLED,
        )

    async def checkpoint(self, claim: Claim, tail: Tail, step: Step) -> None:
        """Stores a finished step that another follows, with the log up to it. Raises as `end`
        does."""
        values = (
            self._values(claim)
            | _log_values(tail)
            | {
                "items": Jsonb(step.items),
                "position": step.position,
                "calls": Jsonb(step.calls),
                "turns": step.turns,
                "usage": step.usage and Jsonb(step.usage),
                "next_output_index": step.next_output_index,
                "upstream": step.upstream,
            }
        )
        await self._write(
            run_queries.CHECKPOINT,
            values,
            is_done=lambda state: state.checkpoint_number >= tail.last and state.worker == self._me,
        )

    async def start_call(self, claim: Claim, position: int) -> None:
        """Records that a tool call is about to run. Raises as `end` does."""
        values = self._values(claim) | {"position": position}
        await self._write(run_queries.START_CALL, values, is_done=_never_done)

    async def finish_call(
        self, claim: Claim, tail: Tail, position: int, item: dict[str, Any], result: Any
    ) -> None:
        """Stores a call's final item, what the model receives if the item does not contain it, and
        the log up to the item's done event. Raises as `end` does."""
        values = (
            self._values(claim)
            | _log_values(tail)
            | {
                "position": position,
                "item": Jsonb(item),
                "result": None if result is None else Jsonb(result),
            }
        )
        await self._write(run_queries.FINISH_CALL, values, is_done=_never_done)

    async def wait_until_fresh(self) -> None:
        """Waits until the lease was renewed recently enough to start a turn or a tool call."""
        while not self._lease.is_fresh:  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    async def release(
        self,
        claim: Claim,
        tail: Tail,
        reason: ReleaseReason = ReleaseReason.HANDED_OVER,
        pause: timedelta | None = None,
    ) -> None:
        """Releases the response with its log complete up to `tail`. No worker claims it before
        `pause` is over. Nothing may be written under this claim afterwards. Raises `LeaseLost`."""
        values = self._values(claim) | _log_values(tail)
        await self._write(
            run_queries.RELEASE,
            values | {"outcome": reason.value, "pause": pause},
            is_done=lambda state: state.worker is None,
        )

    async def release_unknown(self, response_id: UUID, attempt: int) -> None:
        """Releases what the database counts as ours although it does not run here: a claim whose
        reply was lost. Raises what DATABASE_UNAVAILABLE names."""
        values = {"me": self._me, "id": response_id, "attempt": attempt}
        outcome = {"outcome": ReleaseReason.RETURNED.value, "pause": None}
        await fetch(self._pool, run_queries.RELEASE, values | _log_values(_EMPTY_TAIL) | outcome)

    def _values(self, claim: Claim) -> dict[str, object]:
        return {"me": self._me, "id": claim.id, "attempt": claim.attempt}

    async def _write(
        self,
        query: Query[UUID],
        values: Mapping[str, object],
        is_done: Callable[[OwnershipState], bool],
        *,
        is_blocked_by_cancel: bool = False,
    ) -> None:
        """One fenced write, repeated identically while Postgres is unavailable, until its outcome
        is known. `is_done`: whether the row shows that an earlier try of the write was
        successful."""

        async def attempt() -> OwnershipState | None:
            await self._lease.wait_until_valid()
            if await fetch(self._pool, query, values):
                return None
            states = await fetch(self._pool, run_queries.OWNERSHIP_STATE, values)
            if not states or states[0].attempt != values["attempt"]:
                raise LeaseLost("the response belongs to another attempt")
            return states[0]

        state = await retry_while_unavailable(attempt)
        if state is None or is_done(state):
            return
        if state.cancelled and is_blocked_by_cancel:
            raise Cancelled
        raise LeaseLost("this worker's lease was revoked")


_EMPTY_TAIL = Tail(first=0, last=-1, frames=b"")


def _log_values(tail: Tail) -> dict[str, object]:
    return {"first": tail.first, "last": tail.last, "frames": tail.frames}


def _never_done(_: OwnershipState) -> bool:
    """For a statement that changes a row each time it is repeated: when it changed nothing, no
    earlier try of it was successful either."""
    return False


def _end_reason(orphan: LockedOrphan) -> EndReason | None:
    if orphan.cancelled or orphan.abandoned:
        return EndReason.CANCELLED
    if orphan.failed:
        return EndReason.FAILED_BY_OPERATOR
    if orphan.past_deadline:
        return EndReason.DEADLINE if orphan.started else EndReason.QUEUE_WAIT
    return EndReason.TOO_MANY_CRASHES if orphan.crashes > QUARANTINE_THRESHOLD else None


async def _recover_journal(connection: Connection, response_id: UUID, previous: UUID | None) -> int:
    """Appends to the event log what the previous owner had journalled beyond it; returns the number
    of the last event that is stored."""
    end = (await fetch(connection, claim_queries.LOG_END, {"id": response_id}))[0]
    if previous is None:
        return end
    unflushed = {"id": response_id, "previous": previous, "after": end}
    for block in await fetch(connection, claim_queries.UNFLUSHED_JOURNAL, unflushed):
        if block.first > end + 1 or block.last <= end:
            # Nothing behind a gap can be recovered. Only a crash of Postgres together with the
            # crash of the worker makes one (docs/guarantees.md).
            continue
        missing = {
            "id": response_id,
            "first": end + 1,
            "last": block.last,
            "attempt": block.attempt,
            "frames": b"".join(split_frames(block.frames)[end + 1 - block.first :]),
        }
        await execute(connection, claim_queries.RECOVER_JOURNAL, missing)
        end = block.last
    return end
