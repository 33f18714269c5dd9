"""All statements of the product, by name."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from models.db import queries
from models.db.statement import Query, Statement


def _all() -> Iterator[tuple[str, Statement | Query[Any]]]:
    for module_info in pkgutil.iter_modules(queries.__path__):
        module = importlib.import_module(f"{queries.__name__}.{module_info.name}")
        for name, value in vars(module).items():
            named = value.items() if isinstance(value, dict) and name.isupper() else [("", value)]
            for key, statement in named:
                if isinstance(statement, Statement | Query):
                    yield f"{module_info.name}.{name}{key and f'[{key}]'}", statement


STATEMENTS = dict(_all())
"""`<file>.<NAME>`, or `<file>.<NAME>[<key>]` for one of several under a name."""

_PARAMETER = re.compile(r"%\((\w+)\)s")


def parameters_of(statement: Statement | Query[Any]) -> list[str]:
    """The names of its parameters, in the order of their first use."""
    return list(dict.fromkeys(_PARAMETER.findall(statement.sql)))


def server_form(statement: Statement | Query[Any]) -> str:
    """Its text as Postgres prepares it, with `$1` for the first of `parameters_of`."""
    numbers = {name: number for number, name in enumerate(parameters_of(statement), 1)}
    numbered = _PARAMETER.sub(lambda match: f"${numbers[match[1]]}", statement.sql)
    return numbered.replace("%%", "%")
