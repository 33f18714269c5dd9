"""All statements of the product by name, as `backburner sql` prints them."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from cli.errors import CommandFailed
from models.db import queries
from models.db.statement import NumberedQuery, Query, Statement


def all_statements() -> dict[str, Statement | Query[Any]]:
    """`<file>.<NAME>`, or `<file>.<NAME>[<key>]` for one of several under a name -> the
    statement."""
    return dict(
        found
        for module_info in pkgutil.iter_modules(queries.__path__)
        for found in _statements_of(module_info.name)
    )


def _statements_of(file: str) -> Iterator[tuple[str, Statement | Query[Any]]]:
    module = importlib.import_module(f"{queries.__name__}.{file}")
    for name, value in vars(module).items():
        named = value.items() if isinstance(value, dict) and name.isupper() else [("", value)]
        for key, statement in named:
            if isinstance(statement, Statement | Query):
                yield f"{file}.{name}{key and f'[{key}]'}", statement


def sql_text(name: str) -> str:
    """The statement as PostgreSQL receives it, after a comment with the names of its parameters.
    Raises CommandFailed if there is no statement of that name."""
    statement = all_statements().get(name)
    if statement is None:
        raise CommandFailed(f"there is no statement {name}: `backburner sql` lists them")
    numbered = NumberedQuery(statement.sql)
    names = ", ".join(f"${number} {each}" for number, each in enumerate(numbered.parameters, 1))
    return f"-- {names or 'no parameters'}\n{numbered.sql.decode().strip()}"
