"""Batches, as commands show and cancel them."""

from dataclasses import dataclass
from typing import Any

from cli.errors import RequestRefused
from cli.operations.audit_entries import operator
from cli.output import table
from models.db.queries import batches as statements
from models.db.queries.audit import AuditEntry
from models.db.sync import SyncConnection, fetch_sync
from models.ids import batch_id, file_id, parse_batch_id
from models.operator.filter import LAST_ID
from models.operator.text import format_time

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
    created_at: str
    expires_at: str
    ended_at: str | None
    input_file: str
    output_file: str | None
    error_file: str | None
    errors: list[dict[str, Any]]
    """of the input file"""

    @classmethod
    def from_row(cls, row: statements.ListedBatch) -> "ShownBatch":
        """The batch of a row."""
        return cls(
            id=batch_id(row.id),
            project=row.project,
            status=row.status,
            model=row.model,
            total=row.total,
            started=row.expanded,
            completed=row.completed,
            failed=row.failed,
            completion_window=row.completion_window,
            created_at=format_time(row.created_at),
            expires_at=format_time(row.expires_at),
            ended_at=None if row.ended_at is None else format_time(row.ended_at),
            input_file=file_id(row.input_file_id),
            output_file=None if row.output_file_id is None else file_id(row.output_file_id),
            error_file=None if row.error_file_id is None else file_id(row.error_file_id),
            errors=row.errors or [],
        )

    @property
    def has_ended(self) -> bool:
        """It changes no more."""
        return self.status in ENDED


def list_batches(
    database: SyncConnection, project: str | None, limit: int, *, only_open: bool
) -> list[ShownBatch]:
    """The newest batches."""
    values = {"project": project, "open": only_open, "before": LAST_ID, "limit": limit}
    rows = fetch_sync(database, statements.LIST_ALL_BATCHES, values)
    return [ShownBatch.from_row(row) for row in rows]


def find(database: SyncConnection, name: str) -> ShownBatch:
    """The batch with this id. Raises RequestRefused."""
    identity = parse_batch_id(name)
    rows = fetch_sync(database, statements.SHOW_BATCH, {"id": identity}) if identity else []
    if not rows:
        raise RequestRefused(f"there is no batch {name}; `backburner batches list` lists them")
    return ShownBatch.from_row(rows[0])


def cancel(database: SyncConnection, name: str) -> ShownBatch:
    """Begins to cancel a batch. Raises RequestRefused."""
    batch = find(database, name)
    identity = parse_batch_id(name)
    project = fetch_sync(database, statements.PROJECT_OF_BATCH, {"id": identity})[0]
    entry = AuditEntry(operator(), "batch.cancel", name).of_project(batch.project)
    values = {"id": identity, "project": project, **entry.values()}
    if not fetch_sync(database, statements.CANCEL_BATCH, values):
        raise RequestRefused(f"it cannot be cancelled: it is {find(database, name).status}")
    return find(database, name)


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
            batch.created_at,
            batch.expires_at,
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
        f"window       {batch.completion_window}, until {batch.expires_at}",
        f"created      {batch.created_at}",
        f"ended        {batch.ended_at or '-'}",
        f"input file   {batch.input_file}",
        f"output file  {batch.output_file or '-'}",
        f"error file   {batch.error_file or '-'}",
    ]
    for error in batch.errors:
        where = "file" if error["line"] is None else f"line {error['line']}"
        lines.append(f"{where}: {error['code']}: {error['message']}")
    return "\n".join(lines)
