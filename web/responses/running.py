"""The output of running responses, folded from their events as they arrive.

A client may poll a response that has tens of thousands of events. Folding them all for each GET
would stop the event loop for a large part of a second. So the folds are kept, up to a number of
bytes, and a GET folds only the events since the last one.

A GET shows the fold of all events up to some number, and never fewer than a reader had seen when
the GET began (I7): each read is one snapshot of the whole response, and what is kept is valid only
for the same attempt, owner and checkpoint (models/db/queries/read.py, SHOWN_RESPONSES).
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from models.db.queries.common import LogBlock
from models.db.queries.read import ShownResponseRow, is_page_full
from models.wire.events import Item, decode_frame, split_frames
from models.wire.progress import written_size
from models.wire.snapshot import AttemptsFold

_MAX_BYTES = 32 * 1024 * 1024
"""Bytes of all folds that one process keeps, about."""
_OBJECT_COST = 8
"""Bytes of memory for each byte of JSON that is kept as objects, about."""
_EMPTY_COST = 2000
"""Bytes of memory of an output without items, about."""


@dataclass(frozen=True, slots=True)
class KnownPart:
    """What a process knows of a running response."""

    attempt: int = 0
    """0: nothing is folded, or not all of a page; the next read begins at the checkpoint"""
    worker: UUID | None = None
    checkpoint: int = -1
    number: int = -1
    """of the last event that is folded"""
    batch: int = 0
    """of the owner's journal, up to which it was looked at"""


@dataclass(slots=True, eq=False)
class RunningOutput:
    """The output of one response, up to one event."""

    known: KnownPart = field(default_factory=KnownPart)
    stored: list[Item] = field(default_factory=list)
    """the items of finished turns"""
    fold: AttemptsFold = field(default_factory=AttemptsFold)
    """the events after the checkpoint"""
    size: int = _EMPTY_COST
    """bytes, about"""
    counted_size: int = 0
    """its part in the size of all kept outputs"""
    _stored_text_size: int | None = None
    """of the items of finished turns; None: not counted yet"""

    def add(self, row: ShownResponseRow) -> bool:
        """Folds what a read has returned for `known`: a page of the log. Returns whether it was the
        last one."""
        number = self.known.number
        if not row.is_continued:
            self._restart(row)
            number = row.checkpoint_number
        batch = self.known.batch if row.is_continued else 0
        self.known = KnownPart()
        blocks = row.blocks(journalled=False)
        is_last = not is_page_full(blocks)
        if is_last:
            blocks += row.blocks(journalled=True)
        for block in blocks:
            number = self._add(block, number)
        if is_last and all(block.last <= number for block in blocks):
            batch = row.last_batch or batch
        self.known = KnownPart(row.attempt, row.worker, row.checkpoint_number, number, batch)
        return is_last

    def items(self) -> list[Item]:
        """The items of finished turns, then those of the present one. The caller must not change
        them, nor use them after its next `await`."""
        # An item that a checkpoint has just stored is in the log as well.
        ids = {item["id"] for item in self.stored}
        return self.stored + [item for item in self.fold.items() if item["id"] not in ids]

    def written_size(self, *, with_stored: bool) -> int:
        """Bytes of what the model has written in the present turn; `with_stored`: in all turns."""
        if not with_stored:
            return self.fold.text_size
        if self._stored_text_size is None:
            self._stored_text_size = written_size(self.stored)
        return self._stored_text_size + self.fold.text_size

    def _restart(self, row: ShownResponseRow) -> None:
        self.stored = row.items or []
        self._stored_text_size = None
        self.fold = AttemptsFold()
        self.size = _EMPTY_COST + _OBJECT_COST * len(orjson.dumps(self.stored))

    def _add(self, block: LogBlock, number: int) -> int:
        """Folds those events of the block that are not folded yet, and nothing behind a gap.
        `number`: of the last event that is folded; returns the new one."""
        if block.first > number + 1:
            return number
        for frame in split_frames(block.frames)[number + 1 - block.first :]:
            event = decode_frame(frame)
            self.fold.add(block.attempt, event)
            is_text = "delta" in event and not event.get("logprobs")
            self.size += len(event["delta"]) if is_text else _OBJECT_COST * len(frame)
        return max(number, block.last)


class RunningOutputs:
    """The outputs that one web process keeps: those that were used last."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.size = 0
        """Bytes of all outputs, about; `max_bytes` at most."""
        self._max_bytes = max_bytes
        self._outputs: OrderedDict[UUID, RunningOutput] = OrderedDict()

    def find(self, response_id: UUID) -> RunningOutput:
        """The output of the response as far as it is known, or an empty one."""
        return self._outputs.get(response_id) or RunningOutput()

    def keep(self, response_id: UUID, output: RunningOutput) -> None:
        """Keeps the output, and drops others until the rest fits: those not used for longest."""
        if self._outputs.get(response_id) is not output:
            self.forget(response_id)
            self._outputs[response_id] = output
        self._outputs.move_to_end(response_id)
        self.size += output.size - output.counted_size
        output.counted_size = output.size
        while self.size > self._max_bytes:
            self.forget(next(iter(self._outputs)))

    def forget(self, response_id: UUID) -> None:
        """Drops the output of a response that does not run any more."""
        output = self._outputs.pop(response_id, None)
        if output is not None:
            self.size -= output.counted_size
            output.counted_size = 0
