"""What happened by minute, for the plots of the console (docs/console.md)."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    SmallInteger,
    Table,
    text,
)

from models.db.tables.base import TIMESTAMP, metadata


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def _durations(name: str, doc: str) -> Column[list[int]]:
    return Column(name, ARRAY(Integer), nullable=False, server_default=text("'{}'"), doc=doc)


activity = Table(
    "activity",
    metadata,
    Column(
        "width",
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        doc="seconds that the row is about: 60, or 600",
    ),
    Column("begins_at", TIMESTAMP, primary_key=True),
    Column(
        "sampled",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="a worker has begun to count what waits and runs",
    ),
    Column("waiting", Integer, doc="responses that waited; of ten minutes the most"),
    Column("oldest_seconds", Double, doc="the age of the oldest of them"),
    Column("running", Integer, doc="responses that ran; of ten minutes the most"),
    _count("completed"),
    _count("failed"),
    _count("input_tokens"),
    _count("output_tokens"),
    _durations(
        "first_token_counts",
        "responses by the time until their first output (models/duration_counts.py)",
    ),
    _durations("total_counts", "responses by the time until their end"),
)
