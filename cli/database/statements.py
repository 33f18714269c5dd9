"""All statements of the product by name, as `backburner sql` prints them."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cli.errors import CommandFailed
from models.db import queries
from models.db.statement import NumberedQuery, Query, Statement
from models.features import FEATURES


def all_statements() -> dict[str, Statement | Query[Any]]:
    """`<file>.<NAME>`, or `<file>.<NAME>[<key>]` for one of several under a name -> the statement.
    Of a feature `<feature>.<NAME>`; `queries` is left out of the names of its files."""
    named = {
        each.name: f"{queries.__name__}.{each.name}" for each in iter_modules(queries.__path__)
    }
    for feature in FEATURES:
        path = f"features.{feature}"
        for each in iter_modules(import_module(path).__path__):
            if each.name.endswith("queries"):
                part = each.name.removesuffix("queries").removesuffix("_")
                named[f"{feature}.{part}".rstrip(".")] = f"{path}.{each.name}"
    return dict(found for name, path in named.items() for found in _statements_of(name, path))


def _statements_of(file: str, path: str) -> Iterator[tuple[str, Statement | Query[Any]]]:
    for name, value in vars(import_module(path)).items():
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
