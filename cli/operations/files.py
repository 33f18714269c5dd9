"""Files, as commands show and delete them."""

from dataclasses import dataclass

from cli.errors import RequestRefused
from cli.operations.audit_entries import operator
from cli.output import table
from models.db.queries import files as statements
from models.db.queries.audit import AuditEntry
from models.db.sync import SyncConnection, fetch_sync
from models.ids import file_id, parse_file_id
from models.operator.filter import LAST_ID
from models.operator.text import format_time


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
    created_at: str
    expires_at: str | None

    @classmethod
    def from_row(cls, row: statements.ListedFile) -> "ShownFile":
        """The file of a row."""
        return cls(
            id=file_id(row.id),
            project=row.project,
            filename=row.filename,
            purpose=row.purpose,
            state=row.state,
            bytes=row.bytes,
            media_type=row.media_type,
            parts=row.parts,
            created_at=format_time(row.created_at),
            expires_at=None if row.expires_at is None else format_time(row.expires_at),
        )


def list_files(
    database: SyncConnection, project: str | None, purpose: str | None, limit: int
) -> list[ShownFile]:
    """The newest files."""
    values = {"project": project, "purpose": purpose, "before": LAST_ID, "limit": limit}
    rows = fetch_sync(database, statements.LIST_ALL_FILES, values)
    return [ShownFile.from_row(row) for row in rows]


def find(database: SyncConnection, name: str) -> ShownFile:
    """The file with this id. Raises RequestRefused."""
    return ShownFile.from_row(_row(database, name))


def delete(database: SyncConnection, name: str) -> ShownFile:
    """Hides a file, so that the purge deletes it, and adds the entry to the audit log. Raises
    RequestRefused."""
    row = _row(database, name)
    entry = AuditEntry(operator(), "file.delete", name).of_project(row.project)
    values = {"id": row.id, "project": row.project_id} | entry.values()
    if not fetch_sync(database, statements.DELETE_FILE, values):
        raise RequestRefused(f"it cannot be deleted: it is {row.state}")
    return find(database, name)


def _row(database: SyncConnection, name: str) -> statements.ListedFile:
    identity = parse_file_id(name)
    rows = fetch_sync(database, statements.SHOW_FILE, {"id": identity}) if identity else []
    if not rows:
        raise RequestRefused(f"there is no file {name}; `backburner files list` lists them")
    return rows[0]


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
            file.created_at,
            file.expires_at or "-",
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
            f"created  {file.created_at}",
            f"expires  {file.expires_at or '-'}",
        )
    )
