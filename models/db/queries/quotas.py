"""What projects use, as far as their quotas limit it (ADR 0040)."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import ENDED, OPEN, RETRYING
from models.db.statement import Query, column
from models.lifecycle import Lane


@dataclass(frozen=True, slots=True)
class OpenResponseRow:
    """A response that has not ended."""

    project_id: UUID
    id: UUID
    is_waiting: bool
    """no worker has claimed it"""
    is_young: bool
    """it was created within the last seconds"""


OPEN_RESPONSES = Query(
    f"""
    SELECT r.project_id, r.id, r.attempt = 0 AS is_waiting,
           r.created_at > clock_timestamp() - interval '10 seconds' AS is_young FROM responses r
    WHERE r.status IN {OPEN} AND r.lane <> {Lane.BATCH.value} AND r.project_id = ANY(CAST(:projects AS uuid[]))
    """,
    OpenResponseRow,
)
"""Selects the open responses of these projects, without those of batches: they wait behind all
others, and few of a batch are open at a time."""
ENDED_RESPONSES = column(
    f"SELECT r.id FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[])) AND r.status IN {ENDED}",
    UUID,
)
"""Selects those of these responses that have ended."""


@dataclass(frozen=True, slots=True)
class OpenCounts:
    """The open responses of a project, of those that were looked at."""

    project_id: UUID
    open: int
    counted: int
    """those that the quota `running` counts: not in a batch"""
    running: int
    """a worker has them, and their upstream has not failed"""
    retrying: int
    """their upstream has failed, and none has answered since"""

    @property
    def waiting(self) -> int:
        """Those that wait for a slot, or for another response."""
        return self.open - self.running - self.retrying


OPEN_BY_PROJECT = Query(
    f"""
    SELECT r.project_id, count(*) AS open, count(*) FILTER (WHERE r.lane <> {Lane.BATCH.value}) AS counted,
           count(*) FILTER (WHERE r.worker IS NOT NULL AND NOT {RETRYING}) AS running,
           count(*) FILTER (WHERE {RETRYING}) AS retrying
    FROM (SELECT * FROM responses WHERE status IN {OPEN} ORDER BY deadline LIMIT :max_rows) r GROUP BY r.project_id
    """,
    OpenCounts,
)
"""Counts the oldest `max_rows` open responses by project: for operators."""


@dataclass(frozen=True, slots=True)
class ConversationCount:
    """How many conversations a project has."""

    project_id: UUID
    count: int


CONVERSATIONS = Query(
    """
    SELECT c.project_id, count(*) FROM conversations c WHERE c.project_id = ANY(CAST(:projects AS uuid[]))
    GROUP BY c.project_id
    """,
    ConversationCount,
)
"""Counts the conversations of these projects. No row: the project has none."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What one project stores with some of all responses."""

    last: UUID | None
    """the last of these responses; None: there are no more"""
    stored_bytes: int
    """of the project's own among them"""


_ITEM_BYTES = (
    "CASE i.type WHEN 'image_generation_call' THEN i.size ELSE pg_column_size(i.payload) END"
)
"""The image of an item counts, whether it is in its row or stored as a file."""
_MEASURED = 500
"""Responses that are measured at a time: some milliseconds. With a parameter in its place the
planner expects a tenth of all responses, and compiles the statement."""
STORED_WITH_RESPONSES = Query(
    f"""
    WITH page AS MATERIALIZED (SELECT r.id, r.project_id, pg_column_size(r.parameters) AS parameters FROM responses r
                               WHERE r.id > :after ORDER BY r.id LIMIT {_MEASURED})
    SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
           (SELECT coalesce(sum(p.parameters
                   + (SELECT coalesce(sum({_ITEM_BYTES}), 0) FROM items i WHERE i.response_id = p.id)
                   + (SELECT coalesce(sum(pg_column_size(e.frames)), 0) FROM event_log e
                      WHERE e.response_id = p.id)), 0)
            FROM page p WHERE p.project_id = :project)::bigint AS stored_bytes
    """,
    StoredPart,
)
"""Measures a part of what a project stores: the next responses behind `after`, of all
projects, in the order of their ids. Values that are stored apart from their rows are not read."""
STORED_IN_CONVERSATIONS = column(
    f"""
    SELECT coalesce(sum({_ITEM_BYTES}), 0)::bigint FROM conversations c
    JOIN items i ON i.conversation_id = c.id
    WHERE c.project_id = :project AND i.response_id IS NULL
    """,
    int,
)
"""Measures the items of a project's conversations that belong to no response."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """What one project uses now."""

    running: int
    """responses that have not ended"""
    queued: int
    """those that no worker has claimed"""
    conversations: int


QUOTA_STATE = Query(
    f"""
    SELECT count(*) AS running, count(*) FILTER (WHERE r.attempt = 0) AS queued,
           (SELECT count(*) FROM conversations c WHERE c.project_id = :project) AS conversations
    FROM responses r WHERE r.status IN {OPEN} AND r.lane <> {Lane.BATCH.value} AND r.project_id = :project
    """,
    QuotaState,
)
"""Counts what one project uses now, by the names of its quotas: for operators."""
OPEN_BATCH = "b.status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
"""Batch `b` has not ended."""
COUNTED_BATCHES = column(
    f"""
    SELECT ((SELECT count(*) FROM batches b WHERE b.project_id = :project AND {OPEN_BATCH})
          + (SELECT count(*) FROM batches b WHERE b.project_id = :project AND b.status = 'failed'
             AND b.ended_at > statement_timestamp() - interval '1 hour'))::int
    """,
    int,
)
"""Counts the batches of a project that have not ended, or have failed in the last hour: each of
these was validated and keeps its errors, but has no requests that the other quotas would count."""

_MEMORY = "coalesce(rtrim(c.memory_limit, 'g')::bigint, 1) * 1024 * 1024 * 1024"
"""Bytes that the session of container `c` may use."""
_IS_OPEN = """((c.sandbox IS NOT NULL AND c.stop_requested_at IS NULL AND c.deleted_at IS NULL)
    OR c.opening_until > statement_timestamp())"""
"""Container `c` has a session that stays, or is getting one."""


@dataclass(frozen=True, slots=True)
class CodeUse:
    """What the other containers of a project use."""

    sessions: int
    memory: int
    """bytes that their sessions may use"""


CODE_USE = Query(
    f"""
    SELECT count(*) AS sessions, coalesce(sum({_MEMORY}), 0)::bigint AS memory FROM containers c
    WHERE c.project_id = :project AND (c.sandbox IS NOT NULL OR c.opening_until IS NOT NULL) AND {_IS_OPEN}
      AND c.id <> CAST(:id AS uuid)
    """,
    CodeUse,
)

USED_CPU = column(
    """
    SELECT coalesce(sum(x.cpu_ms), 0)::bigint FROM container_cells x
    WHERE x.project_id = :project AND x.began_at >= date_trunc('day', statement_timestamp(), 'UTC')
    """,
    int,
)
"""Milliseconds of CPU of a project since the day (UTC) began."""
