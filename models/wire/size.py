"""How much memory stored JSON costs as objects (docs/adr/0038).

Bytes alone do not tell: `[]` takes four bytes in Postgres and sixty in Python. So each value counts
for some more. Postgres computes the same size (models/db/queries/common.py): about the same, as it
writes a space behind each comma and colon.
"""

from typing import Any

import orjson

from models.wire.json_values import count_marks

VALUE_SIZE = 32
"""Bytes that a value counts besides its text."""


def json_size(value: Any) -> int:
    """The size of JSON, in bytes. Commas and brackets in texts are counted as values too."""
    return encoded_size(orjson.dumps(value))


def encoded_size(encoded: bytes) -> int:
    """The size of JSON in encoded form, in bytes."""
    return len(encoded) + VALUE_SIZE * count_marks(encoded)
