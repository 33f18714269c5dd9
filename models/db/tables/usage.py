"""What responses have used. Nothing here refers to them: usage is kept when they are deleted."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Index,
    Table,
    Text,
    Uuid,
    text,
)

from models.db.tables.base import TIMESTAMP, metadata


def _labels() -> list[Column[Any]]:
    return [
        Column("api_key_id", Uuid),
        Column("model", Text, nullable=False),
        Column("upstream", Text),
        Column("service_tier", Text),
        Column("kind", Text, doc="of a proxied request; null: completions"),
        Column("batch", Boolean, doc="of a request in a batch; null: it is not"),
    ]


def _counts() -> list[Column[int]]:
    names = ("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    return [
        *(Column(name, BigInteger, nullable=False) for name in names),
        Column("units", BigInteger, doc="images, characters of speech, or seconds of audio"),
    ]


usage_entries = Table(
    "usage_entries",
    metadata,
    Column("project_id", Uuid, nullable=False, doc="no foreign key: it is kept"),
    Column("ended_at", TIMESTAMP, nullable=False, server_default=text("clock_timestamp()")),
    *_labels(),
    *_counts(),
    Column("entry_id", Uuid, doc="of a proxied request: it is inserted once"),
    Index("ix_usage_entries_project_id", "project_id", "ended_at"),
    Index(
        "uq_usage_entries_entry_id",
        "entry_id",
        unique=True,
        postgresql_where=text("entry_id IS NOT NULL"),
    ),
    Index("ix_usage_entries_ended_at", "ended_at", postgresql_using="brin"),
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("project_id", Uuid, nullable=False),
    Column("day", Date, nullable=False, doc="in UTC"),
    *_labels(),
    *_counts(),
    Index("ix_usage_days_project_id", "project_id", "day"),
    Index("ix_usage_days_day", "day"),
)

usage_rollup = Table(
    "usage_rollup",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column(
        "rolled_until",
        Date,
        nullable=False,
        doc="days before this one are in usage_days, all others only in usage_entries",
    ),
    CheckConstraint("single", name="single"),
)
