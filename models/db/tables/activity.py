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


def _durations(name: str, comment: str) -> Column[list[int]]:
    return Column(
        name, ARRAY(Integer), nullable=False, server_default=text("'{}'"), comment=comment
    )


activity = Table(
    "activity",
    metadata,
    Column(
        "width",
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        comment="seconds that the row is about: 60, or 600",
    ),
    Column("begins_at", TIMESTAMP, primary_key=True),
    Column(
        "sampled",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="a worker has begun to count what waits and runs",
    ),
    Column("waiting", Integer, comment="responses that waited; of ten minutes the most"),
    Column("oldest_seconds", Double, comment="the age of the oldest of them"),
    Column("running", Integer, comment="responses that ran; of ten minutes the most"),
    _count("completed"),
    _count("failed"),
    _count("input_tokens"),
    _count("output_tokens"),
    _durations(
        "first_token_counts",
        "responses by the time until their first output (models/operator/durations.py)",
    ),
    _durations("total_counts", "responses by the time until their end"),
)
