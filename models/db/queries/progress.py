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
        AND i.position = c.position AND i.type NOT IN ('mcp_list_tools', 'tool_search_output')
    WHERE c.response_id = :id AND c.position >= CAST(:shown AS int)
    """,
    HeldCalls,
)
"""Counts the tool calls of a running response that the stream holds back behind one that still runs.
`shown`: how many items of its output are shown. One row."""


LAST_FAILURE = column(
    """
    SELECT failures #>> '{-1,message}' FROM attempts WHERE response_id = :id AND failures IS NOT NULL
    ORDER BY attempt DESC LIMIT 1
    """,
    str,
)
"""Selects the last failure of an upstream of a response, in the words that its client sees if the
response fails with it. No row: none is stored."""
