"""Whether work of several kinds is due: one statement of a process for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.db.statement import Query


@dataclass(frozen=True, slots=True)
class Due:
    """What is due."""

    processes: int
    """live processes of the kind that was asked for"""
    due: list[bool]
    """for each of the statements whether it has found something"""


def due_query(asked: Sequence[str]) -> Query[Due]:
    """`asked`: statements in psycopg's form, without parameters, each of which selects one
    boolean. `:kind`: of a process."""
    due = ", ".join(f"({sql})" for sql in asked)
    return Query(
        f"""
        SELECT (SELECT count(*) FROM workers WHERE kind = :kind AND NOT dead) AS processes,
               CAST(ARRAY[{due}] AS boolean[]) AS due
        """,
        Due,
    )
