"""Pieces of SQL by which a proxy recognises a statement on the wire."""

from typing import Any

from models.db.statement import Query, Statement


def fragment(statement: Statement | Query[Any], text: str) -> bytes:
    """`text` as it is on the wire. It must be a part of the statement, without a parameter."""
    assert text in statement.sql, f"the statement does not contain {text!r}"
    return text.encode()
