"""The audit log: who did what (docs/operations.md, "Audit log")."""

from sqlalchemy import Column, Index, Table, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, metadata

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column("actor", Text, nullable=False, doc="key, operator, server or unknown"),
    Column("key_id", Uuid, doc="no foreign key: entries outlive keys"),
    Column("key_prefix", Text),
    Column("os_user", Text, doc="the operator who ran a command"),
    Column("project", Text, doc="the name that the project had"),
    Column("address", Text, doc="of the client, or the host on which a command ran"),
    Column("action", Text, nullable=False),
    Column("object", Text, doc="the public id or the name of what it was done to"),
    Column("outcome", Text, nullable=False),
    Column("request_id", Text),
    Column("details", JSONB, nullable=False, server_default=text("'{}'")),
    Index("ix_audit_at", "at", "id"),
)
