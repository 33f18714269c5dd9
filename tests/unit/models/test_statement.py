"""The SQL that is sent is the SQL that was written, with psycopg's parameters."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from cli.database.statements import sql_text
from cli.errors import CommandFailed
from models.db import queries
from models.db.statement import Statement


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT :id, :other_id2 WHERE x = :id",
        "SELECT w.id::text, CAST(:ids AS uuid[]), '12:30:00', a[1:2], x::int::text",
        "SELECT 1 % 2, 'like%' WHERE name LIKE :name || '%'",
        "SELECT ARRAY[:a,:b], (:c)::bigint, :d::text",
    ],
)
def test_parameters_and_percent_signs_are_rewritten_as_sqlalchemy_does_it(sql: str) -> None:
    dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    assert Statement(sql).sql == str(text(sql).compile(dialect=dialect))


def test_indentation_is_removed() -> None:
    assert Statement("  SELECT :a\n      FROM b").sql == "SELECT %(a)s\nFROM b"


def test_a_statement_is_shown_as_postgres_receives_it() -> None:
    shown = sql_text("operations.MADE_BY_REQUEST")
    assert shown == (
        "-- $1 request_id, $2 max_rows\n"
        "SELECT id FROM responses WHERE request_id = $1 ORDER BY id LIMIT $2"
    )
    with pytest.raises(CommandFailed, match="no statement read"):
        sql_text("read.NONE")


def test_lines_of_sql_have_120_columns_at_most() -> None:
    [folder] = queries.__path__
    too_long = [
        f"{file.name}:{number}"
        for file in Path(folder).glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert too_long == []
