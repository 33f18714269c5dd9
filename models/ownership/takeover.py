"""Claims of responses: new and released ones, which need no recovery, and those of dead owners, in
one transaction with what these had journalled; and the event logs that their new owner needs.

The transaction claims the rows, then reads in later statements the end of the event log and the
journal of the *previous* owner, and appends what is missing. If it rolls back, the previous owner
stays recorded. The number of statements does not depend on the number of responses, so a thousand
orphans need a few hundred.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

import psycopg
import structlog

from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Connection, Pool, execute, fetch, is_refusal
from models.db.queries import claim as claim_queries
from models.db.queries.claim import (
    CLAIM_UNOWNED,
    CLAIM_UNOWNED_TOGETHER,
    ClaimedRow,
    LockedOrphan,
    ResponseBlock,
)
from models.db.queries.common import LogBlock
from models.db.statement import Query
from models.errors import LeaseLost
from models.lifecycle import NO_CRASHES, Crashes
from models.ownership.grouping import GroupedRequests
from models.wire.events import split_frames

logger = structlog.get_logger()

MayRun = Callable[[Crashes], bool]
"""Whether a worker may run a response with so many crashes now."""


class EndReason(StrEnum):
    """Why a response is claimed only to be ended."""

    CANCELLED = "cancelled"
    FAILED_BY_OPERATOR = "failed_by_operator"
    QUEUE_WAIT = "queue_wait"
    DEADLINE = "deadline"
    TOO_MANY_CRASHES = "too_many_deaths"
    PREVIOUS_FAILED = "previous_failed"
    PREVIOUS_CANCELLED = "previous_cancelled"
    PREVIOUS_DELETED = "previous_deleted"
    PREVIOUS_CALLS = "previous_calls"


@dataclass(frozen=True, slots=True)
class Claim:
    """A response that this process owns, and the attempt."""

    row: ClaimedRow
    log_end: int
    """the number of the last event that is stored"""
    crashes: Crashes = NO_CRASHES
    """of earlier attempts"""
    end_reason: EndReason | None = None
    blocks: list[LogBlock] = field(default_factory=list)
    """what earlier attempts published after the last checkpoint, in order; nothing if an earlier
    ending of the response crashed its worker, because reading these blocks may be the cause"""
    seconds_lost: float | None = None
    """since the lease of a crashed previous owner ran out; None if no owner crashed"""
    is_first: bool = False
    """no attempt before has stored an event"""
    has_unread_log: bool = False
    """`blocks`, `log_end` and `is_first` are not read yet (`Ownership.with_log`)"""

    @property
    def id(self) -> UUID:
        """The id of the response."""
        return self.row.id

    @property
    def attempt(self) -> int:
        """The number of this attempt: every write is on condition that it is the current one."""
        return self.row.attempt


async def take_over(
    connection: Connection,
    values: Mapping[str, object],
    ids: Sequence[UUID],
    accepts: MayRun,
) -> list[Claim]:
    """Claims those of the responses `ids` that have no live owner, inside the caller's transaction.

    `values`: `me`, `wall_clock` and `first_attempt` of the statements. `accepts`: whether this
    worker runs a response with such crashes; one that is only to be ended needs no consent. A
    response that another transaction locks is left out. Raises LeaseLost if this process was
    declared dead, and what DATABASE_UNAVAILABLE names.
    """
    if not await fetch(connection, claim_queries.FENCE_ALONE, values):
        raise LeaseLost("this worker's lease was revoked")
    locked = await fetch(connection, claim_queries.LOCK_ORPHANS, {"ids": Uuids(ids)})
    reasons = {orphan.id: _end_reason(orphan) for orphan in locked}
    to_run = [
        orphan.id for orphan in locked if reasons[orphan.id] is None and accepts(orphan.crashes)
    ]
    to_end = [orphan.id for orphan in locked if reasons[orphan.id] is not None]
    rows = [
        *await _claim(connection, claim_queries.CLAIM, values, to_run),
        *await _claim(connection, claim_queries.CLAIM_TO_END, values, to_end),
    ]
    if not rows:
        return []
    orphans = {orphan.id: orphan for orphan in locked}
    owners = {row.id: owner for row in rows if (owner := orphans[row.id].worker) is not None}
    seconds_lost = await _record_deaths(connection, [row for row in rows if row.id in owners])
    log_ends = await read_log_ends(connection, [row.id for row in rows])
    if owners:
        log_ends |= await _recover_journals(connection, owners, log_ends)
    return [
        Claim(
            row,
            log_end=log_ends[row.id],
            crashes=orphans[row.id].crashes,
            end_reason=(end_reason := reasons[row.id]),
            seconds_lost=seconds_lost.get(row.id),
            is_first=row.attempt == 1 and end_reason is None,
            has_unread_log=row.attempt > 1
            and not (end_reason is not None and orphans[row.id].crashes.has_crashed_ending),
        )
        for row in rows
    ]


async def read_logs(
    connection: Connection, rows: Sequence[ClaimedRow]
) -> dict[UUID, list[LogBlock]]:
    """The event logs of these responses since their last checkpoints. This process owns them, so no
    other one writes to them."""
    values = {
        "ids": Uuids([row.id for row in rows]),
        "afters": Ints([row.checkpoint_number for row in rows]),
    }
    logs: dict[UUID, list[LogBlock]] = {row.id: [] for row in rows}
    for block in await fetch(connection, claim_queries.LOGS_SINCE, values):
        logs[block.id].append(LogBlock(block.attempt, block.first, block.last, block.frames))
    return logs


async def read_log_ends(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, int]:
    """The number of the last event of each response in the event log, -1 if there is none."""
    ends = await fetch(connection, claim_queries.LOG_ENDS, {"ids": Uuids(ids)})
    return {end.id: end.last for end in ends}


def _end_reason(orphan: LockedOrphan) -> EndReason | None:
    if orphan.cancelled or orphan.abandoned:
        return EndReason.CANCELLED
    if orphan.failed and orphan.previous is not None:
        return EndReason(f"previous_{orphan.previous}")
    if orphan.failed:
        return EndReason.FAILED_BY_OPERATOR
    if orphan.past_deadline:
        return EndReason.DEADLINE if orphan.started else EndReason.QUEUE_WAIT
    return EndReason.TOO_MANY_CRASHES if orphan.crashes.is_fatal else None


async def _claim(
    connection: Connection,
    query: Query[ClaimedRow],
    values: Mapping[str, object],
    ids: Sequence[UUID],
) -> list[ClaimedRow]:
    return await fetch(connection, query, {**values, "ids": Uuids(ids)}) if ids else []


async def _record_deaths(connection: Connection, rows: Sequence[ClaimedRow]) -> dict[UUID, float]:
    """Records that the previous owners crashed; returns how many seconds ago each lease ran out."""
    if not rows:
        return {}
    values = {
        "ids": Uuids([row.id for row in rows]),
        "attempts": Ints([row.attempt for row in rows]),
    }
    deaths = await fetch(connection, claim_queries.RECORD_OWNER_DEATHS, values)
    return {death.id: death.seconds_lost for death in deaths}


async def _recover_journals(
    connection: Connection, owners: Mapping[UUID, UUID], log_ends: Mapping[UUID, int]
) -> dict[UUID, int]:
    """Appends to the event logs what the previous owners had journalled beyond them.

    `owners`: the previous owner of each response. Returns the new ends of these event logs.
    """
    ends = {response_id: log_ends[response_id] for response_id in owners}
    values = {
        "ids": Uuids(list(owners)),
        "previous": Uuids(list(owners.values())),
        "afters": Ints(list(ends.values())),
    }
    missing: list[ResponseBlock] = []
    for block in await fetch(connection, claim_queries.UNFLUSHED_JOURNALS, values):
        end = ends[block.id]
        if block.first > end + 1 or block.last <= end:
            # Nothing behind a gap can be recovered. Only a crash of Postgres together with the
            # crash of the worker makes one (docs/guarantees.md).
            continue
        frames = block.frames
        if block.first <= end:
            frames = b"".join(split_frames(frames)[end + 1 - block.first :])
        missing.append(ResponseBlock(block.id, block.attempt, end + 1, block.last, frames))
        ends[block.id] = block.last
    if missing:
        await execute(connection, claim_queries.RECOVER_JOURNALS, _log_values(missing))
    return ends


def _log_values(blocks: Sequence[ResponseBlock]) -> dict[str, object]:
    return {
        "ids": Uuids([block.id for block in blocks]),
        "firsts": Ints([block.first for block in blocks]),
        "lasts": Ints([block.last for block in blocks]),
        "attempts": Ints([block.attempt for block in blocks]),
        "frames": Byteas([block.frames for block in blocks]),
    }


class ClaimedLogs:
    """Reads the logs of claims since their last checkpoints, after the claims are committed: if the
    size of a log crashes this process, that is counted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._requests = GroupedRequests(self.read_all)

    async def read_with_others(self, claim: Claim) -> Claim:
        """The claim with its log; unchanged if the logs that are requested at this time cannot be
        read together: one of them may be too large."""
        return await self._requests.submit(claim)

    async def read(self, claim: Claim) -> Claim:
        """The claim with its log. Raises what DATABASE_UNAVAILABLE names."""
        async with self._pool.connection() as connection:
            since = {"id": claim.id, "after": claim.row.checkpoint_number}
            blocks = await fetch(connection, claim_queries.LOG_SINCE, since)
            if blocks or claim.log_end >= 0:
                return _with_blocks(claim, blocks)
            log_ends = await read_log_ends(connection, [claim.id])
            return replace(_with_blocks(claim, []), log_end=log_ends[claim.id])

    async def read_all(self, claims: list[Claim]) -> list[Claim]:
        """These claims with their logs, as far as they are not read yet; unchanged if Postgres
        refuses to read them together."""
        unread = [claim for claim in claims if claim.has_unread_log]
        if not unread:
            return claims
        try:
            async with self._pool.connection() as connection:
                logs = await read_logs(connection, [claim.row for claim in unread])
                empty = [claim.id for claim in unread if not logs[claim.id] and claim.log_end < 0]
                ends = await read_log_ends(connection, empty) if empty else {}
        except psycopg.Error as error:
            logger.warning("logs_not_read", responses=len(unread), error=str(error).strip())
            return claims
        return [
            _with_blocks(replace(claim, log_end=ends.get(claim.id, claim.log_end)), logs[claim.id])
            if claim.has_unread_log
            else claim
            for claim in claims
        ]


def _with_blocks(claim: Claim, blocks: list[LogBlock]) -> Claim:
    """The claim with its log since the last checkpoint."""
    published = [block for block in blocks if block.attempt > 0]
    return replace(
        claim,
        blocks=published,
        log_end=blocks[-1].last if blocks else claim.log_end,
        is_first=not published
        and claim.row.checkpoint_number < 0
        and claim.end_reason is None
        and not claim.crashes.since_checkpoint,
        has_unread_log=False,
    )


class UnownedClaims:
    """The claims of one worker. Those that are requested while a statement is on its way are made
    together by the next one. A request that comes alone has the statement for one response, which
    takes a third less of Postgres."""

    def __init__(self, pool: Pool, claim_values: Callable[[], Mapping[str, object]]) -> None:
        """`claim_values`: `me`, `wall_clock` and `first_attempt` of the statements."""
        self._pool = pool
        self._claim_values = claim_values
        self._requests = GroupedRequests(self._take_group)

    async def take(self, response_id: UUID) -> Claim | None:
        """Claims the response. None: it has an owner, its workers have crashed, it may not run now,
        or it is deleted. Raises what DATABASE_UNAVAILABLE names: the claim may then have been
        made."""
        claim, is_known = await self._requests.submit(response_id)
        # Another transaction may have locked the row, which a group does not wait for.
        return claim if is_known else await self._take_alone(response_id)

    async def _take_group(self, ids: list[UUID]) -> list[tuple[Claim | None, bool]]:
        """The claims, and whether it is known of each response if it can be claimed."""
        if len(ids) == 1:
            return [(await self._take_alone(ids[0]), True)]
        return [(claim, claim is not None) for claim in await self._take_together(ids)]

    async def _take_alone(self, response_id: UUID) -> Claim | None:
        """The statement for one response. Waits until no other transaction has locked it."""
        values = {**self._claim_values(), "id": response_id}
        rows = await fetch(self._pool, CLAIM_UNOWNED, values)
        return claim_of(rows[0]) if rows else None

    async def _take_together(self, ids: list[UUID]) -> list[Claim | None]:
        """One statement. None also for a response that is locked, and for all if Postgres refuses
        the statement: one of them may be the cause."""
        values = {**self._claim_values(), "ids": Uuids(ids)}
        try:
            rows = await fetch(self._pool, CLAIM_UNOWNED_TOGETHER, values)
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            logger.warning("claims_refused", responses=len(ids), error=str(error).strip())
            return [None] * len(ids)
        claims = {row.id: claim_of(row) for row in rows}
        # Of two requests for the same response only one has claimed it.
        return [claims.pop(response_id, None) for response_id in ids]


def claim_of(row: ClaimedRow) -> Claim:
    """The claim of a response that no owner had lost: its event log is complete."""
    if row.attempt == 1:
        return Claim(row, log_end=1 if row.background else 0, is_first=True)
    return Claim(row, log_end=-1, has_unread_log=True)
