"""A database with many responses, for tests of plans."""

from pathlib import Path

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

_FILL = Path(__file__).with_suffix(".sql")


async def fill(connection: AsyncConnection[TupleRow], responses: int) -> None:
    """Fills the empty database of a superuser with so many responses (many_responses.sql), and
    makes the statistics.

    Foreign keys are not checked meanwhile: the rows fit, and the checks take most of the time.
    """
    await connection.execute("SET session_replication_role = replica")
    await connection.execute("SET synchronous_commit = off")
    await connection.execute(_FILL.read_bytes().replace(b":rows", b"%d" % responses))
    await connection.execute("RESET session_replication_role")
    await connection.execute("ANALYZE")
    # Autovacuum makes none of a partitioned table, only of its partitions.
    await connection.execute("DELETE FROM pg_statistic WHERE starelid = 'event_log'::regclass")
