"""Batches, as commands show and cancel them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cli.errors import RequestRefused
from cli.output import table
from features.batches import queries as statements
from features.batches import service
from features.batches.service import BatchNotCancelled
from features.operator.audit_entries import operator
from features.operator.filter import LAST_ID
from features.operator.rows import fact
from models.db.database import Connection, fetch, find_by_id
from models.ids import batch_id, file_id, parse_batch_id
from models.time_text import format_time

ENDED = frozenset(("completed", "failed", "expired", "cancelled"))


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """A batch."""

    id: str
    project: str
    status: str
    model: str | None
    total: int
    started: int
    """requests that were made responses or errors"""
    completed: int
    failed: int
    completion_window: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    input_file: str
    output_file: str | None
    error_file: str | None
    errors: list[dict[str, Any]]
    """of the input file"""

    @classmethod
    def from_row(cls, row: statements.ListedBatch) -> "ShownBatch":
        """The batch of a row."""
        return fact(
            cls,
            row,
            id=batch_id(row.id),
            started=row.expanded,
            input_file=file_id(row.input_file_id),
            output_file=None if row.output_file_id is None else file_id(row.output_file_id),
            error_file=None if row.error_file_id is None else file_id(row.error_file_id),
            errors=row.errors or [],
        )

    @property
    def has_ended(self) -> bool:
        """It changes no more."""
        return self.status in ENDED


async def list_batches(
    database: Connection, project: str | None, limit: int, *, only_open: bool
) -> list[ShownBatch]:
    """The newest batches."""
    values = {"project": project, "open": only_open, "before": LAST_ID, "max_rows": limit}
    rows = await fetch(database, statements.LIST_ALL_BATCHES, values)
    return [ShownBatch.from_row(row) for row in rows]


async def find(database: Connection, name: str) -> ShownBatch:
    """The batch with this id. Raises RequestRefused."""
    return ShownBatch.from_row(await _row(database, name))


async def cancel(database: Connection, name: str) -> ShownBatch:
    """Begins to cancel a batch. Raises RequestRefused."""
    row = await _row(database, name)
    try:
        await service.cancel(database, row.project_id, row.id, operator(), row.project)
    except BatchNotCancelled as refused:
        raise RequestRefused(f"it cannot be cancelled: it is {refused.status}") from None
    return await find(database, name)


async def _row(database: Connection, name: str) -> statements.ListedBatch:
    row = await find_by_id(database, statements.SHOW_BATCH, parse_batch_id(name))
    if row is None:
        raise RequestRefused(f"there is no batch {name}; `backburner batches list` lists them")
    return row


def progress(batch: ShownBatch) -> str:
    """One line: how far the batch is."""
    counts = f"{batch.completed} completed, {batch.failed} failed of {batch.total}"
    return f"{batch.id}  {batch.status}  {counts}"


def as_table(batches: list[ShownBatch]) -> str:
    """A line for each batch."""
    if not batches:
        return "There are no batches."
    head = ("id", "project", "status", "total", "completed", "failed", "created", "expires")
    rows = [
        (
            batch.id,
            batch.project,
            batch.status,
            str(batch.total),
            str(batch.completed),
            str(batch.failed),
            format_time(batch.created_at),
            format_time(batch.expires_at),
        )
        for batch in batches
    ]
    return table(head, rows)


def as_text(batch: ShownBatch) -> str:
    """All of a batch, for people."""
    lines = [
        progress(batch),
        f"project      {batch.project}",
        f"model        {batch.model or '-'}",
        f"window       {batch.completion_window}, until {format_time(batch.expires_at)}",
        f"created      {format_time(batch.created_at)}",
        f"ended        {format_time(batch.ended_at) if batch.ended_at else '-'}",
        f"input file   {batch.input_file}",
        f"output file  {batch.output_file or '-'}",
        f"error file   {batch.error_file or '-'}",
    ]
    for error in batch.errors:
        where = "file" if error["line"] is None else f"line {error['line']}"
        lines.append(f"{where}: {error['code']}: {error['message']}")
    return "\n".join(lines)
