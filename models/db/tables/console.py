"""The sessions of the console (docs/console.md)."""

from sqlalchemy import Column, LargeBinary, Table, Text, func

from models.db.tables.base import TIMESTAMP, metadata

console_sessions = Table(
    "console_sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True, doc="SHA-256 of the token in the cookie"),
    Column("role", Text, nullable=False, doc="operator or read_only"),
    Column("name", Text, nullable=False, doc="who it is, for the audit log"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column("expires_at", TIMESTAMP, nullable=False),
)

console_links = Table(
    "console_links",
    metadata,
    Column("hash", LargeBinary, primary_key=True, doc="SHA-256 of the token in the link"),
    Column("expires_at", TIMESTAMP, nullable=False),
)
