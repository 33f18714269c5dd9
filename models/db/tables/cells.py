"""What travels with a project from one cell to another (docs/cells.md)."""

from sqlalchemy import Boolean, Column, ForeignKey, Table, Uuid

from models.db.tables.base import TIMESTAMP, metadata, required

moved_things = Table(
    "moved_things",
    metadata,
    Column("id", Uuid, primary_key=True, doc="of a file, a conversation, a response, …"),
    required("project_id", Uuid, references="projects.id", cascade=True, index=True),
    required("is_copy", Boolean, "true: it is still the other cell's; false: it has left this one"),
)

project_moves = Table(
    "project_moves",
    metadata,
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True),
    required("run", Uuid, "the command that moves it; what an earlier one sends is refused"),
    required("began_at", TIMESTAMP, "when this cell got the request", default="clock_timestamp()"),
)
