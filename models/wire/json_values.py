"""Counts the values of JSON in its bytes, before objects are made of them: objects need up to
thirty times the memory."""

import re
from typing import Any

import orjson

from models.wire.image_marks import marked_sizes, may_have_marks

_COMPLETE = re.compile(rb'[^"]*+(?:"(?:[^"\\\r\n]|\\[^\r\n])*+(?:"|\\?[\r\n])[^"]*+)*+', re.DOTALL)
"""Everything up to a string that does not end in these bytes. JSON has no line break in a string;
a line of an event stream that has another quote ends there too."""
_CONTAINER_WEIGHT = 4
"""Other values that take as long to make as a list or an object, roughly."""
_STRING = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*+(?:"|\\?[\r\n])')


class ValueCounter:
    """Counts the values of JSON that arrives in pieces: commas and opening brackets outside of
    strings."""

    def __init__(self) -> None:
        self.count = 0
        self.containers = 0
        """Those that are a list or an object."""
        self._open = b""
        """What stands for the beginning of a string that has not ended: a quote, and a backslash if
        the last byte escapes the next one."""

    def feed(self, piece: bytes | bytearray) -> None:
        """Counts the values in the next piece."""
        piece = self._open + piece
        match = _COMPLETE.match(piece)
        end = match.end() if match is not None else 0
        without_strings = _STRING.sub(b"", piece[:end])
        containers = count_containers(without_strings)
        self.containers += containers
        self.count += without_strings.count(b",") + containers
        unfinished = piece[end:]
        escapes = len(unfinished) - len(unfinished.rstrip(b"\\"))
        self._open = unfinished[:1] + b"\\" * (escapes % 2)

    @property
    def weight(self) -> int:
        """The values, each list and object as four: how long they take to make."""
        return weight(self.count, self.containers)


def weight(values: int, containers: int) -> int:
    """So many values, each of the lists and objects among them as four."""
    return values + (_CONTAINER_WEIGHT - 1) * containers


def count_marks(encoded: bytes | bytearray) -> int:
    """Commas and opening brackets, also in strings: never fewer than there are values."""
    return encoded.count(b",") + count_containers(encoded)


def count_containers(encoded: bytes | bytearray) -> int:
    """Opening brackets, also in strings: never fewer than there are lists and objects."""
    return encoded.count(b"[") + encoded.count(b"{")


VALUE_SIZE = 32
"""Bytes that a value counts besides its text, in the size of stored JSON (docs/adr/0039): `[]`
takes four bytes in Postgres and sixty in Python.

Postgres computes the same size (models/db/queries/common.py): about the same, as it writes a space
behind each comma and colon."""


def json_size(value: Any) -> int:
    """The size of JSON, in bytes. Commas and brackets in texts are counted as values too. Images of
    a list of items that are stored as files count as if they were in it."""
    encoded = orjson.dumps(value)
    images = marked_sizes(value) if may_have_marks(encoded) else 0
    return encoded_size(encoded) + images


def encoded_size(encoded: bytes) -> int:
    """The size of JSON in encoded form, in bytes."""
    return len(encoded) + VALUE_SIZE * count_marks(encoded)
