"""How a row becomes what commands show of it."""

from dataclasses import fields
from typing import TypeVar

FactT = TypeVar("FactT")


def fact(kind: type[FactT], row: object, **made: object) -> FactT:
    """A fact (a dataclass) whose fields are those of a row, except for what is `made`."""
    names = [each.name for each in fields(kind) if each.name not in made]  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **made)
