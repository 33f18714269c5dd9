"""What the tables have in common. What `doc` says of a column is not in the database."""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Index, MetaData, text

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

TIMESTAMP = DateTime(timezone=True)


def optional(
    name: str,
    kind: Any,
    doc: str | None = None,
    *,
    default: str | None = None,
    references: str | None = None,
    cascade: bool = False,
    **options: Any,
) -> Column[Any]:
    """A column that may be null. `default`: as SQL. `references`: the column of another table with
    which it is a foreign key; `cascade`: the row is deleted with that one."""
    key = [ForeignKey(references, ondelete="CASCADE" if cascade else None)] if references else []
    value = None if default is None else text(default)
    return Column(name, kind, *key, doc=doc, server_default=value, **options)


def required(name: str, kind: Any, doc: str | None = None, **options: Any) -> Column[Any]:
    """A column that is never null; else as `optional`."""
    return optional(name, kind, doc, nullable=False, **options)


def count(name: str, doc: str | None = None) -> Column[Any]:
    """A number that begins with 0."""
    return required(name, BigInteger, doc, default="0")


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    """An index of the rows for which `where`, which is SQL, is true."""
    return Index(name, *columns, unique=unique, postgresql_where=text(where))
