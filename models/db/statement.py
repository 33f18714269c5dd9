"""A SQL statement as an object: its text, compiled once, and the type of the rows it returns.

The texts are written with `:name` parameters, as SQLAlchemy's `text()` reads them. Each of them is
rewritten at import to psycopg's form (`%(name)s`, a literal `%` doubled), and psycopg runs them
(models/db/database.py). SQLAlchemy is not imported for that: its import takes longer than a whole
command of an operator may take. A test compares the result with SQLAlchemy's
(tests/unit/models/test_statement.py).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, LiteralString, TypeVar

RowT = TypeVar("RowT")

_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?![:\w])")
"""A parameter, but not a cast (`::text`) and no part of a word."""


def _compile(sql: str) -> LiteralString:
    """The statement in psycopg's form, without indentation: psycopg reads a statement of more than
    4096 characters again each time it runs (`NumberedQuery`)."""
    compiled = _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
    return "\n".join(line.strip() for line in compiled.splitlines())


class Statement:
    """A statement that returns no rows. `sql` is in psycopg's form."""

    __slots__ = ("sql",)

    def __init__(self, sql: str) -> None:
        self.sql = _compile(sql)


_MAX_CACHED = 4096
"""Characters of a statement whose parameters psycopg finds only once."""
_COMPILED_PARAMETER = re.compile(r"%\((\w+)\)s")


class NumberedQuery:
    """A statement as Postgres prepares it, with `$1` for the first of `parameters`."""

    __slots__ = ("parameters", "sql")

    def __init__(self, sql: LiteralString) -> None:
        """`sql`: in psycopg's form."""
        self.parameters = list(dict.fromkeys(_COMPILED_PARAMETER.findall(sql)))
        numbers = {name: number for number, name in enumerate(self.parameters, 1)}
        numbered = _COMPILED_PARAMETER.sub(lambda match: f"${numbers[match[1]]}", sql)
        self.sql = numbered.replace("%%", "%").encode()


class Query(Generic[RowT]):
    """A statement that returns rows, and how a row is made. `sql` is in psycopg's form; `numbered`
    is set for a statement that is so long that psycopg would read it again each time."""

    __slots__ = ("_size_of", "from_row", "is_planned_anew", "numbered", "sql")

    def __init__(
        self,
        sql: str,
        from_row: Callable[..., RowT],
        *,
        is_planned_anew: bool = False,
        size_of: Callable[[RowT], int] | None = None,
    ) -> None:
        """`from_row`: called with a row's columns in the order of the SELECT or RETURNING list.
        Its parameters carry the names of the columns
        (tests/integration/database/test_statements.py). `is_planned_anew`: Postgres plans it for
        the values of each run, because a plan for all values is much slower. `size_of`: the bytes
        of all rows, which each row tells, if there may be many."""
        self._size_of = size_of
        self.is_planned_anew = is_planned_anew
        self.sql = _compile(sql)
        self.numbered = NumberedQuery(self.sql) if len(self.sql) > _MAX_CACHED else None
        self.from_row = from_row

    def rows(self, records: Iterable[tuple[Any, ...]]) -> list[RowT]:
        """The typed rows of what psycopg fetched."""
        from_row = self.from_row
        return [from_row(*record) for record in records]

    def size(self, rows: Sequence[RowT]) -> int:
        """Bytes of the rows; 0 if they are few."""
        return self._size_of(rows[0]) if rows and self._size_of is not None else 0


def column(sql: str, value_type: type[RowT]) -> Query[RowT]:  # noqa: ARG001  (only for mypy)
    """A query of one column: its rows are the bare values."""
    return Query(sql, _first)


def _first(value: Any) -> Any:
    return value
