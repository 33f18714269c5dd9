"""The processes, and the releases that run on these tables."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from models.db.tables.base import TIMESTAMP, metadata

workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column("expires_at", TIMESTAMP, nullable=False),
    Column("dead", Boolean, nullable=False, server_default=text("false")),
    Column("ended", Text, doc="how it ended: stopped, or reaped by which process"),
    Column(
        "flushed_batch",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        doc="journal batches up to here are in event_log",
    ),
    Column(
        "drain_requested_at",
        TIMESTAMP,
        doc="an operator wants it to hand over its responses and stop",
    ),
    Column(
        "settled_at",
        TIMESTAMP,
        doc="a web process: creates sent before this time have a known outcome",
    ),
    Column(
        "tied",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="it has held the lock of its tie: the lock is free only if its session ended",
    ),
    Column("slots", Integer, doc="of a worker: the most responses that it runs at a time"),
    Column("version", Text, doc="the release that it runs"),
    CheckConstraint("kind IN ('worker', 'quarantine', 'web')", name="kind"),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column(
        "oldest_revision",
        Text,
        nullable=False,
        doc="the oldest migration whose release runs on this schema",
    ),
    CheckConstraint("single", name="single"),
)
