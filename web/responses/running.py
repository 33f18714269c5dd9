"""The output of running responses, folded from their events as they arrive.

A client may poll a response that has tens of thousands of events. Folding them all for each GET
would stop the event loop for a large part of a second. So the folds are kept, up to a number of
bytes, and a GET folds only the events since the last one.

A GET shows the fold of all events up to some number, and never fewer than a reader had seen when
the GET began (I7): each read is one snapshot of the whole response, and what is kept is valid only
for the same attempt, owner and checkpoint (models/db/queries/read.py, RUNNING_RESPONSE).
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from models.db.database import Pool, fetch_idempotent
from models.db.queries.common import LogBlock
from models.db.queries.read import (
    PAGE_LIMITS,
    RUNNING_RESPONSE,
    RunningResponseRow,
    is_page_full,
)
from models.lifecycle import Status
from models.wire.events import Item, decode_frame, split_frames
from models.wire.snapshot import AttemptsFold

_MAX_BYTES = 32 * 1024 * 1024
"""Bytes of all folds that one process keeps, about."""
_OBJECT_COST = 8
"""Bytes of memory for each byte of JSON that is kept as objects, about."""
_EMPTY_COST = 2000
"""Bytes of memory of an output without items, about."""


@dataclass(slots=True, eq=False)
class _RunningOutput:
    """The output of one response, up to one event."""

    attempt: int = 0
    """0: nothing is folded, or not all of a page; the next read begins at the checkpoint"""
    worker: UUID | None = None
    checkpoint: int = -1
    number: int = -1
    """of the last event in `fold`"""
    stored: list[Item] = field(default_factory=list)
    """the items of finished turns"""
    fold: AttemptsFold = field(default_factory=AttemptsFold)
    """the events after the checkpoint"""
    size: int = _EMPTY_COST
    """bytes, about"""
    counted_size: int = 0
    """its part in the size of all kept outputs"""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """held by the GET that reads the log for this output"""

    def add_page(self, rows: list[RunningResponseRow]) -> bool:
        """Folds a page of the log; returns whether it was the last one."""
        if not rows[0].is_continued:
            self._restart(rows)
        self.attempt = 0
        blocks = [row.block for row in rows if row.block is not None and not row.is_journalled]
        is_last = not is_page_full(blocks)
        if is_last:
            blocks += [row.block for row in rows if row.block is not None and row.is_journalled]
        for block in blocks:
            self._add(block)
        self.attempt = rows[0].attempt
        return is_last

    def items(self) -> list[Item]:
        """The items of finished turns, then those of the present one."""
        # An item that a checkpoint has just stored is in the log as well.
        ids = {item["id"] for item in self.stored}
        return self.stored + [item for item in self.fold.items() if item["id"] not in ids]

    def _restart(self, rows: list[RunningResponseRow]) -> None:
        self.worker = rows[0].worker
        self.checkpoint = self.number = rows[0].checkpoint_number
        self.stored = [row.item for row in rows if row.item is not None]
        self.fold = AttemptsFold()
        self.size = _EMPTY_COST + _OBJECT_COST * len(orjson.dumps(self.stored))

    def _add(self, block: LogBlock) -> None:
        """Folds those events of the block that are not folded yet. Nothing behind a gap."""
        if block.first > self.number + 1:
            return
        for frame in split_frames(block.frames)[self.number + 1 - block.first :]:
            event = decode_frame(frame)
            self.fold.add(block.attempt, event)
            is_text = "delta" in event and not event.get("logprobs")
            self.size += len(event["delta"]) if is_text else _OBJECT_COST * len(frame)
        self.number = max(self.number, block.last)


class RunningOutputs:
    """The folds of one web process; those that were used last are kept."""

    def __init__(self, pool: Pool, max_bytes: int = _MAX_BYTES) -> None:
        self.size = 0
        """Bytes of all folds, about; `max_bytes` at most."""
        self._pool = pool
        self._max_bytes = max_bytes
        self._outputs: OrderedDict[UUID, _RunningOutput] = OrderedDict()

    async def read(self, response_id: UUID) -> list[Item] | None:
        """The output so far; None if the response does not run any more.

        The caller must not change the items, nor use them after its next `await`.
        """
        output = self._outputs.setdefault(response_id, _RunningOutput())
        self._outputs.move_to_end(response_id)
        try:
            async with output.lock:
                is_running = await self._update(response_id, output)
        finally:
            self._keep(response_id, output)
        if not is_running:
            self._forget(response_id)
            return None
        return output.items()

    async def _update(self, response_id: UUID, output: _RunningOutput) -> bool:
        """Folds all events that are stored now; returns whether the response is running."""
        while True:
            values = {
                "id": response_id,
                "attempt": output.attempt,
                "worker": output.worker,
                "checkpoint": output.checkpoint,
                "number": output.number,
                **PAGE_LIMITS,
            }
            rows = await fetch_idempotent(self._pool, RUNNING_RESPONSE, values)
            if not rows or rows[0].status != Status.IN_PROGRESS:
                return False
            if output.add_page(rows):
                return True

    def _keep(self, response_id: UUID, output: _RunningOutput) -> None:
        """Counts the output, and drops others until the rest fits: those not used for longest."""
        if self._outputs.get(response_id) is output:
            self.size += output.size - output.counted_size
            output.counted_size = output.size
        while self.size > self._max_bytes:
            self._forget(next(iter(self._outputs)))

    def _forget(self, response_id: UUID) -> None:
        output = self._outputs.pop(response_id, None)
        if output is not None:
            self.size -= output.counted_size
