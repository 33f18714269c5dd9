"""The SQL that is sent is the SQL that was written, with psycopg's parameters."""

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

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
