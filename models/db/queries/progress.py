"""What is read of an open response beside its row and its log (web/responses/progress.py)."""

from dataclasses import dataclass
from uuid import UUID

from models.db.statement import Query, column

PROJECT_OF = column("SELECT project_id FROM responses WHERE id = :id", UUID)
"""Selects the project of a response, for operators."""


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """Calls of tools that are not shown yet."""

    done: int
    open: int


HELD_CALLS = Query(
    """
    SELECT count(*) FILTER (WHERE c.finished)::int AS done, count(*) FILTER (WHERE NOT c.finished)::int AS open
    FROM tool_calls c JOIN items i ON i.response_id = c.response_id AND i.direction = 'output'
        AND i.position = c.position AND i.type <> 'mcp_list_tools'
    WHERE c.response_id = :id AND c.position >= CAST(:shown AS int)
    """,
    HeldCalls,
)
"""Counts the tool calls of a running response that the stream holds back behind one that still runs.
`shown`: how many items of its output are shown. One row."""


@dataclass(frozen=True, slots=True)
class ReleasedAttempt:
    """An attempt, how it ended, and when."""

    attempt: int
    outcome: str | None
    """null: it runs"""
    ended_at: float | None
    """in seconds since the epoch"""
    last_error: str | None
    """of a deferred attempt: the upstream's failure, in the words that its client sees if the response
    fails with it"""


LAST_ATTEMPTS = Query(
    """
    SELECT attempt, outcome, extract(epoch FROM ended_at)::float8 AS ended_at, failures #>> '{-1,message}' AS last_error
    FROM attempts WHERE response_id = :id ORDER BY attempt DESC LIMIT :max_rows
    """,
    ReleasedAttempt,
)
"""Selects the last attempts of a response, the newest first. Of attempts that were deferred one after
the other only the first and the last are stored (run.RELEASE)."""
