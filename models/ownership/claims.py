"""Who runs a response: take, checkpoint, end, release (design §4.2-§4.6).

`take` is the one way to lay hands on a response, and it is one transaction: claim the row; in a later statement read the end of its
event log and the journal of its *previous* owner; append what is missing. If it rolls back, the previous owner is still on record.

Every write here may be repeated: an answer that never came (Postgres away) leaves the outcome unknown, and the identical statement
then finds its own traces (`STANDING`) instead of writing twice.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, LiteralString
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Json, Jsonb, Pool, Row, fetch, fetch_on
from models.db.queries import statements
from models.errors import Cancelled, LeaseLost
from models.lifecycle import TERMINAL, Status
from models.ownership.lease import Lease
from models.wire.events import split_frames

QUARANTINE_THRESHOLD = 2
"""A response that was held by this many dying processes runs alone, in quarantine; one death more and it has failed (design §4.6)."""


class EndReason(StrEnum):
    """Why a response taken over is only to be ended."""

    CANCELLED = "cancelled"
    FAILED_BY_OPERATOR = "failed_by_operator"
    QUEUE_WAIT = "queue_wait"
    DEADLINE = "deadline"
    TOO_MANY_CRASHES = "too_many_deaths"


class ReleaseReason(StrEnum):
    """Why an attempt has given its response back, as `attempts.outcome` says it; one more outcome, `died`, is its successor's to note."""

    HANDED_OVER = "handed_over"
    REQUEUED = "requeued"
    RETURNED = "returned"
    """claimed, but the answer never came: it was never run"""
    DEFERRED = "put_off"
    """no upstream could be asked: nobody is to take it for a while"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A response that this process now owns, under this attempt."""

    row: Row
    """as `statements.CLAIM` returns it"""
    log_end: int
    """the number of the last event that is stored"""
    end_reason: EndReason | None = None
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    """what earlier attempts have shown since the last checkpoint, in order: (attempt, block of frames)"""
    seconds_lost: float | None = None
    """since the lease of a previous owner that died ran out; None when nobody died"""

    @property
    def id(self) -> UUID:
        """The response."""
        return self.row["id"]  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        """This claim's number: the fence of every write."""
        return self.row["attempt"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Tail:
    """What the log has not stored yet: one block of frames, numbers inclusive. Empty when `first` > `last`."""

    first: int
    last: int
    frames: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `completed_at` in whole seconds since the epoch; `items` from `position` on."""

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
    """(position, item) of what was stored at a checkpoint and is otherwise now: calls that were still running"""
    unanswered_calls: list[str] = field(default_factory=list)
    service_tier: str | None = None
    upstream: str | None = None
    """which answered the last turn"""


@dataclass(frozen=True, slots=True)
class Step:
    """What a checkpoint stores: a turn of the model, or calls that come before its first."""

    items: list[dict[str, Any]]
    position: int
    """of the first of them in the output"""
    calls: list[dict[str, Any]]
    """of `tool_calls`, those we run: position, output_index, turn, finished"""
    turns: int
    """1 for a turn of the model, else 0"""
    usage: dict[str, Any] | None
    """of the whole response so far"""
    next_output_index: int
    upstream: str | None = None
    """which answered it"""


class Ownership:
    """One worker's way to take, end and give back responses. Raises `LeaseLost` when the fence says it is dead."""

    def __init__(self, pool: Pool, lease: Lease, settings: Settings) -> None:
        self._pool = pool
        self._me = lease.id
        self._lease = lease
        self._quarantine = settings.quarantine
        self._wall_clock = settings.limits.wall_clock

    async def take(self, response_id: UUID) -> Claim | None:
        """The response, claimed, or None when it is not to be had (ended, owned by a live worker, or not for this kind of worker)."""
        parameters = {"me": self._me, "id": response_id, "wall_clock": self._wall_clock}
        if not self._quarantine:
            fresh = await fetch(self._pool, statements.CLAIM_FRESH, parameters)
            if fresh:
                return Claim(fresh[0], log_end=1 if fresh[0]["background"] else 0)
        async with self._pool.connection() as connection, connection.transaction():
            return await self._take_over(connection, parameters)

    async def _take_over(
        self, connection: AsyncConnection[DictRow], parameters: Mapping[str, object]
    ) -> Claim | None:
        if not await fetch_on(connection, statements.FENCE, parameters):
            raise LeaseLost("this worker has been declared dead")
        locked = await fetch_on(connection, statements.LOCK_ORPHAN, parameters)
        if not locked:
            return None
        end_reason = _end_reason(locked[0])
        if (
            end_reason is None
            and (locked[0]["deaths"] >= QUARANTINE_THRESHOLD) is not self._quarantine
        ):
            return None
        claimed = await fetch_on(
            connection,
            statements.CLAIM if end_reason is None else statements.CLAIM_TO_END,
            parameters,
        )
        if not claimed:
            return None
        died = (
            await fetch_on(
                connection,
                statements.RECORD_OWNER_DEATH,
                {"id": parameters["id"], "attempt": claimed[0]["attempt"]},
            )
            if locked[0]["worker"]
            else []
        )
        end = await _recover_journal(connection, parameters["id"], locked[0]["worker"])
        since = {"id": parameters["id"], "after": claimed[0]["checkpoint_number"]}
        blocks = [
            (row["attempt"], row["frames"])
            for row in await fetch_on(connection, statements.LOG_SINCE, since)
            if row["attempt"] > 0
        ]
        return Claim(
            claimed[0],
            log_end=end,
            end_reason=end_reason,
            frames=blocks,
            seconds_lost=died[0]["seconds_lost"] if died else None,
        )

    async def end(self, claim: Claim, ending: Ending) -> None:
        """Ends the response. Raises `Cancelled` when a cancel was recorded first, `LeaseLost` when it is no longer ours."""
        values = {
            "me": self._me, "id": claim.id, "attempt": claim.attempt, **_log_values(ending.tail),
            "items": Jsonb(ending.items), "position": ending.position, "usage": ending.usage and Jsonb(ending.usage),
            "turns": ending.turns, "error": ending.error and Jsonb(ending.error), "reason": ending.reason,
            "failure": ending.failure and Jsonb(ending.failure), "completed_at": ending.completed_at, "unanswered_calls": ending.unanswered_calls,
            "service_tier": ending.service_tier, "upstream": ending.upstream,
            "changed": Jsonb([{"position": position, "item": item} for position, item in ending.changed]),
        }  # fmt: skip
        await self._write(
            statements.END[ending.status], values, done=lambda row: row["status"] in TERMINAL
        )

    async def checkpoint(self, claim: Claim, tail: Tail, step: Step) -> None:
        """Stores a finished step that another follows, with the log up to it. Raises as `end` does."""
        values = {
            "me": self._me, "id": claim.id, "attempt": claim.attempt, **_log_values(tail), "items": Jsonb(step.items), "position": step.position,
            "calls": Jsonb(step.calls), "turns": step.turns, "usage": step.usage and Jsonb(step.usage), "next_output_index": step.next_output_index,
            "upstream": step.upstream,
        }  # fmt: skip
        await self._write(
            statements.CHECKPOINT,
            values,
            done=lambda row: row["checkpoint_number"] >= tail.last and row["worker"] == self._me,
        )

    async def start_call(self, claim: Claim, position: int) -> None:
        """Notes that a call is about to be made. Raises as `end` does; `Cancelled` also means that it must not be made."""
        values = {"me": self._me, "id": claim.id, "attempt": claim.attempt, "position": position}
        await self._write(statements.START_CALL, values, done=_never_done)

    async def finish_call(
        self, claim: Claim, tail: Tail, position: int, item: dict[str, Any], result: Any
    ) -> None:
        """Stores a call's item as it is in the end, what the model is told if that is not in it, and the log up to its done event."""
        values = {
            "me": self._me, "id": claim.id, "attempt": claim.attempt, **_log_values(tail), "position": position, "item": Jsonb(item),
            "answer": None if result is None else Jsonb(result),
        }  # fmt: skip
        await self._write(statements.FINISH_CALL, values, done=_never_done)

    async def wait_until_fresh(self) -> None:
        """Returns once the lease was renewed recently enough to begin a turn or a call (design §4.3)."""
        while not self._lease.is_fresh:  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    async def release(
        self,
        claim: Claim,
        tail: Tail,
        reason: ReleaseReason = ReleaseReason.HANDED_OVER,
        pause: timedelta | None = None,
    ) -> None:
        """Gives the response back, its log complete up to `tail`; nobody takes it before `pause` is over. Nothing may be written under this
        claim afterwards."""
        values = {
            "me": self._me,
            "id": claim.id,
            "attempt": claim.attempt,
            **_log_values(tail),
            "outcome": reason.value,
            "pause": pause,
        }
        await self._write(statements.RELEASE, values, done=lambda row: row["worker"] is None)

    async def release_unknown(self, response_id: UUID, attempt: int) -> None:
        """Gives back what the database counts as ours although we do not run it: a claim whose answer never came."""
        values = {
            "me": self._me, "id": response_id, "attempt": attempt, "first": 0, "last": -1, "frames": b"", "outcome": ReleaseReason.RETURNED.value, "pause": None,
        }  # fmt: skip
        await fetch(self._pool, statements.RELEASE, values)

    async def _write(self, sql: LiteralString, values: Mapping[str, object], done: Any) -> None:
        """One fenced write, repeated identically while Postgres is away, until its outcome is known."""
        while True:
            await self._lease.wait_until_valid()
            try:
                if await fetch(self._pool, sql, values):
                    return
                current = await fetch(self._pool, statements.OWNERSHIP_STATE, values)
            except DATABASE_UNAVAILABLE:
                await asyncio.sleep(0.5)
                continue
            if not current or current[0]["attempt"] != values["attempt"]:
                raise LeaseLost("the response belongs to another attempt")
            if done(current[0]):
                return
            if current[0]["cancelled"] and sql in _BLOCKED_BY_CANCEL:
                raise Cancelled
            raise LeaseLost("this worker has been declared dead")


_BLOCKED_BY_CANCEL = frozenset(
    sql for status, sql in statements.END.items() if status is not Status.CANCELLED
)


def _log_values(tail: Tail) -> dict[str, object]:
    return {"first": tail.first, "last": tail.last, "frames": tail.frames}


def _never_done(_: Row) -> bool:
    """Of a statement that can be repeated: when it moves nothing, it may not be ours any more, but it was never done before."""
    return False


def _end_reason(row: Row) -> EndReason | None:
    if row["cancelled"] or row["abandoned"]:
        return EndReason.CANCELLED
    if row["failed"]:
        return EndReason.FAILED_BY_OPERATOR
    if row["late"]:
        return EndReason.DEADLINE if row["started"] else EndReason.QUEUE_WAIT
    return EndReason.TOO_MANY_CRASHES if row["deaths"] > QUARANTINE_THRESHOLD else None


async def _recover_journal(
    connection: AsyncConnection[DictRow], response_id: object, previous: UUID | None
) -> int:
    """Appends to the event log what the previous owner had journalled beyond it; returns the last stored number."""
    end: int = (await fetch_on(connection, statements.LOG_END, {"id": response_id}))[0]["last"]
    if previous is None:
        return end
    for block in await fetch_on(
        connection,
        statements.UNFLUSHED_JOURNAL,
        {"id": response_id, "previous": previous, "after": end},
    ):
        if block["first"] > end + 1 or block["last"] <= end:
            # Beyond a hole nothing can be adopted. Only a crash of Postgres together with the worker's death makes one (design §1).
            continue
        frames = b"".join(split_frames(block["frames"])[end + 1 - block["first"] :])
        await fetch_on(
            connection,
            statements.RECOVER_JOURNAL,
            {
                "id": response_id,
                "first": end + 1,
                "last": block["last"],
                "attempt": block["attempt"],
                "frames": frames,
            },
        )
        end = block["last"]
    return end


__all__ = [
    "QUARANTINE_THRESHOLD",
    "Claim",
    "EndReason",
    "Ending",
    "Json",
    "Ownership",
    "ReleaseReason",
    "Step",
    "Tail",
]
