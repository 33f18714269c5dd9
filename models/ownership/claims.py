"""Who runs a response: take, checkpoint, end, release.

`Ownership.take`, `take_next` and `take_orphans` are the only ways to become a response's owner. A
response without an owner is claimed by one statement (models/ownership/takeover.py, line.py). One
whose owner is dead is claimed in a transaction (models/ownership/takeover.py). All claim many
responses at a time, and small endings are stored together too (models/ownership/endings.py).

Every write here may be repeated. When a reply was lost (Postgres unavailable), the outcome is
unknown. The identical statement then detects that it was done before (`OWNERSHIP_STATE`) instead of
writing twice.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import structlog

from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Jsonb,
    Pool,
    execute,
    fetch,
    retry_unless_refused,
)
from models.db.queries import end as end_queries
from models.db.queries import run as run_queries
from models.db.queries.chains import READY_SUCCESSORS, ReadySuccessor
from models.db.queries.end import EndedRow
from models.db.queries.run import OwnershipState
from models.db.queries.steers import QueuedSteer
from models.db.statement import Query, RowT
from models.errors import Cancelled, FailedCall, LeaseLost, StatementRefused, Steered
from models.ids import response_id as public_id
from models.lifecycle import TERMINAL, Crashes, Status
from models.ownership.endings import EndingWriter, Release, ReleaseWriter, failures_json
from models.ownership.lease import Lease
from models.ownership.line import ChosenClaim, ClaimRequest, LineClaims
from models.ownership.steering import end_steered, read_queued
from models.ownership.steps import EMPTY_TAIL, Ending, Step, Tail
from models.ownership.takeover import Claim, ClaimedLogs, MayRun, UnownedClaims, take_over
from models.wire.json_input import json_size

logger = structlog.get_logger()


def _always(_: Crashes) -> bool:
    return True


class ReleaseReason(StrEnum):
    """Why an attempt released its response, as in `attempts.outcome`. One more outcome, `died`, is
    recorded by the next owner."""

    HANDED_OVER = "handed_over"
    REQUEUED = "requeued"
    RETURNED = "returned"
    """claimed, but the reply was lost: it never ran"""
    DEFERRED = "deferred"
    """no upstream was available: no worker claims it for a while"""
    REPEATED = "repeated"
    """the upstream broke off its answer: the next attempt repeats the turn, after a while"""
    ERROR = "error"
    """an error of this server ended the attempt, and the ending could not be stored either, or the
    worker had too little memory; it counts as a crash, so the number of such attempts is bounded"""


class Ownership:
    """How one worker claims, writes and releases responses. Its methods raise `LeaseLost` when the
    fence rejects a write, and repeat a write while Postgres is unavailable."""

    def __init__(self, pool: Pool, lease: Lease, settings: Settings) -> None:
        self._pool = pool
        self._me = lease.id
        self._lease = lease
        self._releases = ReleaseWriter(pool, lease)
        self._unowned = UnownedClaims(pool, self._claim_values)
        self._line = LineClaims(pool, self._claim_values, settings.line)
        self._logs = ClaimedLogs(pool)
        self._endings = EndingWriter(pool, lease)
        self._quarantine = settings.quarantine
        self._wall_clock = settings.limits.wall_clock
        self._queue_wait = settings.limits.queue_wait

    async def take(self, response_id: UUID, may_run: MayRun = _always) -> Claim | None:
        """Claims the response. Returns None if it cannot be claimed: it has ended, a live worker
        owns it, it is deferred, it is not for this kind of worker (quarantine), or `may_run` of its
        crashes is false. Raises what DATABASE_UNAVAILABLE names: the claim may then have been
        made.

        Claims that are requested while a statement is on its way are made by the next one."""
        claim = None if self._quarantine else await self._unowned.take(response_id)
        if claim is None:
            claims = await self._take_over([response_id], may_run)
            claim = claims[0] if claims else None
        return claim and await self.with_log(claim)

    async def take_next(self, choice: ClaimRequest) -> list[ChosenClaim]:
        """Claims what is next in line. A claim may have `has_unread_log`. Raises what
        DATABASE_UNAVAILABLE names: the claims may then have been made."""
        return await self._line.take(choice)

    async def confirm(self, ids: Collection[UUID]) -> None:
        """Records that wake-ups of these responses were read, so that any worker may claim them in
        their turn. Raises what DATABASE_UNAVAILABLE names."""
        await self._line.confirm(ids)

    async def lead_follow_ups(self, claim: Claim) -> None:
        """Moves forward in line what follows this response (`LineClaims.lead_follow_ups`)."""
        if claim.row.background and claim.is_first:
            await self._line.lead_follow_ups(claim.row)

    async def take_orphans(self, ids: Sequence[UUID]) -> list[Claim]:
        """Claims those of the responses `ids` that `take` would claim, in one transaction; for
        workers that are no quarantine workers. Each worker leaves to the others what they are about
        to claim. A claim whose log could not be read with the others has `has_unread_log`. Raises
        what DATABASE_UNAVAILABLE names: all of these claims may then have been made."""
        return await self._logs.read_all(await self._take_over(ids, _always)) if ids else []

    async def with_log(self, claim: Claim) -> Claim | None:
        """The claim with its log. It is read after the claim is committed: if its size crashes this
        process, that is counted. None if Postgres refuses to read it: the response is released, and
        that is counted too. Raises LeaseLost if it cannot be released."""
        if not claim.has_unread_log:
            return claim
        with_log = await self._logs.read_with_others(claim)
        if not with_log.has_unread_log:
            return with_log
        try:
            return await retry_unless_refused(lambda: self._logs.read(claim), self.others_succeed)
        except StatementRefused:
            await self.release(claim, EMPTY_TAIL, ReleaseReason.ERROR)
            return None

    async def _take_over(self, ids: Sequence[UUID], may_run: MayRun) -> list[Claim]:
        def accepts(crashes: Crashes) -> bool:
            return crashes.is_suspect is self._quarantine and may_run(crashes)

        async with self._pool.connection() as connection, connection.transaction():
            return await take_over(connection, self._claim_values(), ids, accepts)

    def _claim_values(self) -> dict[str, object]:
        return {
            "me": self._me,
            "wall_clock": self._wall_clock,
            "first_attempt": self._lease.timeline.first_attempt,
        }

    async def end(self, claim: Claim, ending: Ending) -> bool:
        """Ends the response. Returns whether another one may have waited for it, as far as that is
        known. Raises `Cancelled` if a cancel was recorded first, `Steered` if it has more steers
        than the ending knows of, `LeaseLost` if this process does not own the response any more.

        A small ending is first sent with others. Only if that has not stored it, which may also
        mean that the outcome is unknown, it is sent alone, and its own outcome decides."""
        if (stored := await self._endings.store(claim, ending)) is not None:
            return bool(stored.awaited)
        query, steering = end_queries.END[ending.status], ending.steering
        values = (
            self._values(claim)
            | _log_values(ending.tail)
            | {
                "items": Jsonb(ending.items),
                "origins": Jsonb(ending.origins),
                "position": ending.position,
                "usage": ending.usage and Jsonb(ending.usage),
                "cost": ending.cost,
                "turns": ending.turns,
                "error": ending.error and Jsonb(ending.error),
                "reason": ending.reason,
                "failure": ending.failure and Jsonb(ending.failure),
                "completed_at": ending.completed_at,
                "unanswered_calls": ending.unanswered_calls,
                "service_tier": ending.service_tier,
                "upstream_fields": ending.upstream_fields and Jsonb(ending.upstream_fields),
                "upstream": ending.upstream,
                "failed_upstream": ending.failed_upstream,
                "history_size": ending.history_size,
                "steers": 0 if steering is None else steering.steers,
                "changed": Jsonb(
                    [{"position": position, "item": item} for position, item in ending.changed]
                ),
            }
        )
        rows: list[EndedRow] = []

        async def end() -> bool:
            rows[:] = (
                await fetch(self._pool, query, values)
                if steering is None
                else await end_steered(self._pool, query, values, steering, self._queue_wait)
            )
            return bool(rows)

        await self._repeat(
            end,
            values,
            is_done=lambda state: state.status in TERMINAL,
            is_blocked_by_cancel=ending.status is not Status.CANCELLED,
            steers=None if ending.status not in end_queries.MAY_BE_FOLLOWED else values["steers"],
        )
        return any(row.awaited for row in rows)

    async def ready_successors(self, ended: UUID) -> list[ReadySuccessor]:
        """The responses that have waited for the response `ended`, and are to be run or ended now.
        None of them if Postgres does not answer: then a sweep finds them."""
        try:
            return await fetch(self._pool, READY_SUCCESSORS, {"id": ended})
        except DATABASE_UNAVAILABLE as error:
            logger.warning(
                "successors_not_read", response=public_id(ended), error=str(error).strip()
            )
            return []

    async def queued_steers(self, claim: Claim) -> list[QueuedSteer]:
        """What was sent to the response while it ran; a row without items if nothing was. Raises
        StatementRefused."""
        return await read_queued(self._pool, claim.id, self.others_succeed)

    async def checkpoint(self, claim: Claim, tail: Tail, step: Step) -> int:
        """Stores a finished step that another follows, with the log up to it. Returns how many
        steers the response has. Raises as `end` does."""
        values = (
            self._values(claim)
            | _log_values(tail)
            | {
                "items": Jsonb(step.items),
                "origins": Jsonb(step.origins),
                "position": step.position,
                "calls": Jsonb(step.calls),
                "turns": step.turns,
                "usage": step.usage and Jsonb(step.usage),
                "next_output_index": step.next_output_index,
                "upstream": step.upstream,
            }
        )
        return await self._write(
            run_queries.CHECKPOINT,
            values,
            is_done=lambda state: state.checkpoint_number >= tail.last and state.worker == self._me,
        )

    async def start_call(self, claim: Claim, position: int) -> None:
        """Records that a tool call is about to run. Raises as `end` does."""
        values = self._values(claim) | {"position": position}
        await self._write(
            run_queries.START_CALL, values, is_done=_never_done, is_blocked_by_cancel=True
        )

    async def finish_call(
        self, claim: Claim, tail: Tail, position: int, item: dict[str, Any], result: Any
    ) -> int:
        """Stores a call's final item, what the model receives if the item does not contain it, and
        the log up to the item's done event. Returns how many steers the response has. Raises as
        `end` does."""
        values = (
            self._values(claim)
            | _log_values(tail)
            | {
                "position": position,
                "item": Jsonb(item),
                "size": json_size([item, result]),
                "result": None if result is None else Jsonb(result),
            }
        )
        return await self._write(run_queries.FINISH_CALL, values, is_done=_never_done)

    async def forget_crashes(self, claim: Claim) -> None:
        """Forgets all crashes of a suspect but those that made it one. Does nothing if this process
        does not own it. Raises what DATABASE_UNAVAILABLE names."""
        await fetch(self._pool, run_queries.FORGET_CRASHES, self._values(claim))

    def others_succeed(self) -> bool:
        """Whether Postgres answers other statements of this process: the lease was renewed in the
        last seconds."""
        return self._lease.is_fresh

    def now(self) -> int:
        """The database's time, in whole seconds since the epoch."""
        return self._lease.clock.now()

    async def wait_until_fresh(self) -> None:
        """Waits until the lease was renewed recently enough to start a turn or a tool call."""
        await self._lease.wait_until_fresh()

    async def record_failures(self, claim: Claim, failures: Sequence[FailedCall]) -> None:
        """Stores which calls of upstreams failed in an attempt that has ended its response, for
        operators. If Postgres is unavailable, it is only logged: nothing depends on it."""
        values = self._values(claim) | {"failures": failures_json(failures)}
        try:
            await execute(self._pool, run_queries.RECORD_FAILURES, values)
        except DATABASE_UNAVAILABLE as error:
            logger.warning(
                "failures_not_recorded", response=public_id(claim.id), error=str(error).strip()
            )

    async def record_answer(self, claim: Claim) -> None:
        """Records that an upstream answers a response that was `retrying`. If Postgres is
        unavailable, it is only logged: the next checkpoint or the ending records it too."""
        try:
            await fetch(self._pool, run_queries.RECORD_ANSWER, self._values(claim))
        except DATABASE_UNAVAILABLE as error:
            logger.warning(
                "answer_not_recorded", response=public_id(claim.id), error=str(error).strip()
            )

    async def release(
        self,
        claim: Claim,
        tail: Tail,
        reason: ReleaseReason = ReleaseReason.HANDED_OVER,
        pause: timedelta | None = None,
        failures: Sequence[FailedCall] = (),
    ) -> None:
        """Releases the response with its log complete up to `tail`. No worker claims it before
        `pause` is over; after an error the pause follows from its crashes. `failures`: why it is
        deferred. Nothing may be written under this claim afterwards. Raises `LeaseLost`."""
        if reason is ReleaseReason.ERROR:
            pause = min(_MAX_ERROR_PAUSE, timedelta(seconds=2.0 ** min(claim.row.crashes, 20)))
        await self._releases.release(
            Release(
                claim.id,
                claim.attempt,
                tail.first,
                tail.last,
                tail.frames,
                reason.value,
                pause,
                failures,
            )
        )

    async def release_unknown(self, response_id: UUID, attempt: int) -> None:
        """Releases what the database counts as ours although it does not run here: a claim whose
        reply was lost. Does nothing if it is not ours any more, or if
        Postgres refuses the statement: the next heartbeat tries it again."""
        release = Release(response_id, attempt, 0, -1, b"", ReleaseReason.RETURNED.value)
        with contextlib.suppress(LeaseLost, StatementRefused):
            await self._releases.release(release)

    def _values(self, claim: Claim) -> dict[str, object]:
        return {"me": self._me, "id": claim.id, "attempt": claim.attempt}

    async def _write(
        self,
        query: Query[RowT],
        values: Mapping[str, object],
        is_done: Callable[[OwnershipState], bool],
        *,
        is_blocked_by_cancel: bool = False,
    ) -> RowT | int:
        """One fenced write, as `_repeat` does it. Returns what the statement returns, or how many
        steers the response has, if an earlier try of it was successful."""
        rows: list[RowT] = []

        async def write() -> bool:
            rows[:] = await fetch(self._pool, query, values)
            return bool(rows)

        state = await self._repeat(
            write, values, is_done, is_blocked_by_cancel=is_blocked_by_cancel
        )
        return rows[0] if state is None else state.steers

    async def _repeat(
        self,
        write: Callable[[], Awaitable[bool]],
        values: Mapping[str, object],
        is_done: Callable[[OwnershipState], bool],
        *,
        is_blocked_by_cancel: bool,
        steers: object = None,
    ) -> OwnershipState | None:
        """One fenced write, repeated identically while Postgres is unavailable, until its outcome
        is known. `write`: one try; whether it has changed anything. `is_done`: whether the row
        shows that an earlier try was successful; it is returned then. `steers`: as many the
        response may have. Raises StatementRefused if Postgres answers, and never does this
        write."""

        async def attempt() -> OwnershipState | None:
            await self._lease.wait_until_valid()
            if await write():
                return None
            states = await fetch(self._pool, run_queries.OWNERSHIP_STATE, values)
            if not states or states[0].attempt != values["attempt"]:
                raise LeaseLost("the response belongs to another attempt")
            return states[0]

        state = await retry_unless_refused(attempt, self.others_succeed)
        if state is None or is_done(state):
            return state
        if state.cancelled and is_blocked_by_cancel:
            raise Cancelled
        if steers is not None and state.steers != steers and state.worker == self._me:
            raise Steered
        raise LeaseLost("this worker's lease was revoked")


_MAX_ERROR_PAUSE = timedelta(minutes=5)
"""The longest pause of a response whose attempts end with errors of this server."""


def _log_values(tail: Tail) -> dict[str, object]:
    return {"first": tail.first, "last": tail.last, "frames": tail.frames}


def _never_done(_: OwnershipState) -> bool:
    """For a statement that changes a row each time it is repeated: when it changed nothing, no
    earlier try of it was successful either."""
    return False
