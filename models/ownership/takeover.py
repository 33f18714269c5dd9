"""Claims in one transaction, with what the previous owners had journalled.

A response without an owner needs no recovery. One whose owner is dead does: the transaction claims
the row, then reads in later statements the end of the event log and the journal of the *previous*
owner, and appends what is missing. If it rolls back, the previous owner stays recorded. The number
of statements does not depend on the number of responses, so a thousand orphans need a few hundred.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Connection, execute, fetch
from models.db.queries import claim as claim_queries
from models.db.queries.claim import ClaimedRow, LockedOrphan, ResponseBlock
from models.db.queries.common import LogBlock
from models.db.statement import Query
from models.errors import LeaseLost
from models.lifecycle import NO_CRASHES, Crashes
from models.wire.events import split_frames

MayRun = Callable[[Crashes], bool]
"""Whether a worker may run a response with so many crashes now."""


class EndReason(StrEnum):
    """Why a response is claimed only to be ended."""

    CANCELLED = "cancelled"
    FAILED_BY_OPERATOR = "failed_by_operator"
    QUEUE_WAIT = "queue_wait"
    DEADLINE = "deadline"
    TOO_MANY_CRASHES = "too_many_deaths"


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
