"""Files, as commands show and delete them."""

from dataclasses import dataclass
from datetime import datetime

from cli.errors import RequestRefused
from cli.output import table
from features.files import service
from features.operator.audit_entries import operator
from features.operator.filter import LAST_ID
from features.operator.rows import fact
from models.db.database import Connection, fetch, find_by_id
from models.db.queries import files as statements
from models.ids import file_id, parse_file_id
from models.time_text import format_time


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file."""

    id: str
    project: str
    filename: str
    purpose: str
    state: str
    """`uploading`, `stored`, `deleted` (its bytes are deleted by the purge)"""
    bytes: int
    """while it is uploaded: as many as are reserved for it"""
    media_type: str | None
    parts: int
    """stored objects"""
    created_at: datetime
    expires_at: datetime | None

    @classmethod
    def from_row(cls, row: statements.ListedFile) -> "ShownFile":
        """The file of a row."""
        return fact(cls, row, id=file_id(row.id))


async def list_files(
    database: Connection, project: str | None, purpose: str | None, limit: int
) -> list[ShownFile]:
    """The newest files."""
    values = {"project": project, "purpose": purpose, "before": LAST_ID, "max_rows": limit}
    rows = await fetch(database, statements.LIST_ALL_FILES, values)
    return [ShownFile.from_row(row) for row in rows]


async def find(database: Connection, name: str) -> ShownFile:
    """The file with this id. Raises RequestRefused."""
    return ShownFile.from_row(await _row(database, name))


async def delete(database: Connection, name: str) -> ShownFile:
    """Hides a file, so that the purge deletes it. Raises RequestRefused."""
    row = await _row(database, name)
    if not await service.delete(database, row.project_id, row.id, operator(), row.project):
        raise RequestRefused(f"it cannot be deleted: it is {row.state}")
    return await find(database, name)


async def _row(database: Connection, name: str) -> statements.ListedFile:
    row = await find_by_id(database, statements.SHOW_FILE, parse_file_id(name))
    if row is None:
        raise RequestRefused(f"there is no file {name}; `backburner files list` lists them")
    return row


def as_table(files: list[ShownFile]) -> str:
    """A line for each file."""
    if not files:
        return "There are no files."
    head = ("id", "project", "purpose", "bytes", "created", "expires", "name")
    rows = [
        (
            file.id,
            file.project,
            file.purpose,
            str(file.bytes),
            format_time(file.created_at),
            _time(file.expires_at),
            file.filename,
        )
        for file in files
    ]
    return table(head, rows)


def as_text(file: ShownFile) -> str:
    """All of a file, for people."""
    return "\n".join(
        (
            f"{file.id}  {file.state}",
            f"project  {file.project}",
            f"name     {file.filename}",
            f"purpose  {file.purpose}",
            f"type     {file.media_type or '-'}",
            f"bytes    {file.bytes} in {file.parts} objects",
            f"created  {format_time(file.created_at)}",
            f"expires  {_time(file.expires_at)}",
        )
    )


def _time(time: datetime | None) -> str:
    return "-" if time is None else format_time(time)
