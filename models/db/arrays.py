"""Parameters that are arrays, encoded here in Postgres's binary form.

psycopg's dumper for lists visits each element in Python. At ten thousand frames a second that is
a measurable part of a worker's CPU time.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar
from uuid import UUID

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_pack_length = struct.Struct(">i").pack
_pack_int = struct.Struct(">ii").pack
_pack_bigint = struct.Struct(">iq").pack
_NULL = _pack_length(-1)


@lru_cache(1024)
def _head(element: int, length: int, has_nulls: bool) -> bytes:
    if length:
        return struct.pack(">iiiii", 1, has_nulls, element, length, 1)
    return struct.pack(">iii", 0, 0, element)


class _Packed:
    """An array in Postgres's binary form: dimensions, null flag, element type, length, lower bound;
    then each element with its length, or the length -1 for a null."""

    __slots__ = ("data",)
    element: ClassVar[int]
    """the element's type, by its number in Postgres"""
    oid: ClassVar[int]
    """the number of the array's type"""

    def __init__(self, length: int, elements: Iterable[bytes], *, has_nulls: bool = False) -> None:
        # One piece, not a join and a sum: an element may have 60 MiB.
        self.data = b"".join([_head(self.element, length, has_nulls), *elements])


class Byteas(_Packed):
    """`bytea[]`. An element that is None is a null."""

    element, oid = 17, 1001

    def __init__(self, values: Sequence[bytes | None]) -> None:
        super().__init__(len(values), _sized(values), has_nulls=None in values)


class Texts(_Packed):
    """`text[]`. An element that is None is a null; bytes are the text in UTF-8."""

    element, oid = 25, 1009

    def __init__(self, values: Sequence[str | bytes | None]) -> None:
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        super().__init__(len(values), _sized(encoded), has_nulls=None in values)


class Booleans(_Packed):
    """`bool[]`"""

    element, oid = 16, 1000

    def __init__(self, values: Sequence[bool]) -> None:
        super().__init__(len(values), [b"\x00\x00\x00\x01%c" % value for value in values])


class Ints(_Packed):
    """`int4[]`. An element that is None is a null."""

    element, oid = 23, 1007

    def __init__(self, values: Sequence[int | None]) -> None:
        super().__init__(
            len(values),
            [_NULL if value is None else _pack_int(4, value) for value in values],
            has_nulls=None in values,
        )


class Bigints(_Packed):
    """`int8[]`. An element that is None is a null."""

    element, oid = 20, 1016

    def __init__(self, values: Sequence[int | None]) -> None:
        super().__init__(
            len(values),
            [_NULL if value is None else _pack_bigint(8, value) for value in values],
            has_nulls=None in values,
        )


class Uuids(_Packed):
    """`uuid[]`. An element that is None is a null."""

    element, oid = 2950, 2951

    def __init__(self, values: Sequence[UUID | None]) -> None:
        super().__init__(
            len(values),
            [_NULL if value is None else b"\x00\x00\x00\x10" + value.bytes for value in values],
            has_nulls=None in values,
        )


def _sized(values: Sequence[bytes | None]) -> list[bytes]:
    """Each value behind its length."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_pack_length(len(value)), value)
    return parts


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: _Packed) -> Buffer | None:
        return obj.data


for _kind in (Byteas, Texts, Booleans, Ints, Bigints, Uuids):
    psycopg.adapters.register_dumper(
        _kind, type(f"_{_kind.__name__}Dumper", (_PackedDumper,), {"oid": _kind.oid})
    )
