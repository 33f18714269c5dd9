"""The partitions of the event log, by the ids of their responses: UUIDv7, which begin with the time
(worker/process/log_partitions.py)."""

from dataclasses import dataclass
from uuid import UUID

from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class LogPartition:
    """A partition of the event log, but not the default one."""

    name: str
    begins: UUID
    """the smallest id"""
    ends: UUID
    """behind the largest id"""


PARTITIONS = Query(
    """
    SELECT c.relname::text AS name,
           coalesce(CAST(substring(b.bounds FROM $$FROM \\('([0-9a-f-]+)'\\)$$) AS uuid),
                    '00000000-0000-0000-0000-000000000000') AS begins,
           CAST(substring(b.bounds FROM $$TO \\('([0-9a-f-]+)'\\)$$) AS uuid) AS ends
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) b
    WHERE i.inhparent = 'event_log'::regclass AND b.bounds <> 'DEFAULT' ORDER BY ends
    """,
    LogPartition,
)
"""Selects the partitions in the order of time."""
PROJECT_RETENTIONS = column(
    "SELECT DISTINCT p.policy ->> 'retention' AS value FROM projects p WHERE p.policy ->> 'retention' IS NOT NULL",
    str,
)
"""Selects the retentions of projects that have one of their own, as they are stored."""

ADD = column(
    "SELECT add_log_partition(:name, CAST(:begins AS uuid), CAST(:ends AS uuid)) AS done", bool
)
"""Makes a partition that begins behind all others. False: the table is in use, nothing was done."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a partition whose response is not deleted."""

    rows: int
    """up to the limit; a response without a log counts as one"""
    size: int
    """bytes of their frames"""


KEPT = Query(
    """
    SELECT count(*)::int AS rows, coalesce(sum(pg_column_size(e.frames)), 0)::bigint AS size FROM (
        SELECT e.frames
        FROM (SELECT r.id FROM responses r WHERE r.id >= CAST(:begins AS uuid) AND r.id < CAST(:ends AS uuid)
              ORDER BY r.id LIMIT :rows) r
        LEFT JOIN LATERAL (SELECT e.frames FROM event_log e WHERE e.response_id = r.id OFFSET 0) e ON true LIMIT :rows
    ) e
    """,
    KeptRows,
)
"""Looks at up to `rows` responses from `begins` to `ends`, and rows of their logs. It reads the index
in order: that also removes the entries of deleted responses from it, which DROP would read again."""
DROP = column(
    "SELECT drop_log_partition(:name, CAST(:begins AS uuid), CAST(:ends AS uuid)) AS done", bool
)
"""Drops a partition in one transaction; the rows that are KEPT move to the default partition. False:
the table is in use, nothing was done."""


@dataclass(frozen=True, slots=True)
class CleanedRows:
    """What one CLEAN did."""

    looked_at: int
    id: UUID | None
    """with `number` the last row that was looked at; null: there was none"""
    number: int | None


CLEAN = Query(
    """
    WITH looked AS MATERIALIZED (
        SELECT e.response_id, e.first_number FROM event_log e
        WHERE e.response_id >= CAST(:begins AS uuid) AND e.response_id < CAST(:ends AS uuid)
          AND (e.response_id, e.first_number) > (CAST(:id AS uuid), CAST(:number AS int))
        ORDER BY e.response_id, e.first_number LIMIT :rows
    ),
    deleted AS (DELETE FROM event_log e USING looked l
                WHERE e.response_id = l.response_id AND e.first_number = l.first_number
                  AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.id = l.response_id OFFSET 0))
    SELECT (SELECT count(*) FROM looked)::int AS looked_at, last.response_id AS id, last.first_number AS number
    FROM (SELECT 1) AS one LEFT JOIN (SELECT response_id, first_number FROM looked
                                      ORDER BY response_id DESC, first_number DESC LIMIT 1) last ON true
    """,
    CleanedRows,
)
"""Deletes the rows of deleted responses among the next `rows` rows of a partition, behind the
position (`id`, `number`)."""
