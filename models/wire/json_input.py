"""Decodes JSON from clients and upstreams into values that can be stored and encoded again. Its
values are counted before, in its bytes: objects need up to thirty times the memory."""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import orjson

from models.errors import InvalidRequest, RequestTooLarge
from models.garbage import without_collections
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


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Postgres refuses U+0000; UTF-8 encoders refuse lone surrogates."""

_MAX_LEVELS = 254
"""What orjson writes."""
_SPARE_LEVELS = 64
"""Levels reserved around a body: events and rows contain it."""
_LONG_INTEGER = re.compile(rb"[0-9]{19}")
_LARGEST = sys.float_info.max
_MAX_DIGITS = 4000
"""Digits of an integer that Python reads."""

_PIECE = 64 * 1024
"""Bytes whose values are counted at a time: between two pieces, other threads may run."""
_MIN_COUNTED = 64 * 1024
"""Bytes. A smaller body holds few values, whatever is in it."""
_LISTS = ("input", "messages", "items", "images", "mask")
"""The members of a body whose inline files do not count as text."""
_INLINE = frozenset({"data", "encrypted_content", "file_data", "image_url", "result", "url"})
"""The members of an item that hold a file, as base64 or a data URL, or sealed content."""
_MIN_INLINE = 1024
"""Characters. Shorter ones count as text."""

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large a JSON body may be (docs/limits.md)."""

    size: int
    """bytes in all"""
    text: int
    """bytes without the inline files of its items"""
    values: int
    """lists and objects, which count as four each, and what else they hold"""


def decode_request(
    raw: bytes | bytearray, limits: BodyLimits, pause: Callable[[], None] = lambda: None
) -> Any:
    """The JSON value in a request body, which is no larger than `limits.size`. `pause` is called
    between two passes over all of it, each of which holds the interpreter lock. Raises
    RequestTooLarge, and what `decode_body` raises."""
    count_values(raw, limits)
    pause()
    return decode_counted(raw, limits, pause)


def decode_counted(
    raw: bytes | bytearray, limits: BodyLimits, pause: Callable[[], None] = lambda: None
) -> Any:
    """What `decode_request` returns for a body whose values were counted."""
    body = decode_body(raw, pause)
    if len(raw) > limits.text and len(raw) - inline_size(body) > limits.text:
        raise RequestTooLarge(f"{limits.text} bytes without inline files")
    return body


def decode_body(raw: bytes | bytearray, pause: Callable[[], None] = lambda: None) -> Any:
    """The JSON value in `raw`. `pause`: as for `decode_request`.

    It can be stored and encoded: it has at most 190 levels. Lone surrogates and U+0000 become
    U+FFFD, in values and keys; integers beyond 64 bits become floats, and numbers beyond those the
    largest float, because JavaScript writes such bounds into schemas. Raises
    InvalidRequest(code="invalid_json") for everything else, such as NaN and Infinity.
    """
    try:
        with without_collections():
            body = _parse(raw)
    except RecursionError:
        raise _invalid_json("it is nested too deeply") from None
    except UnicodeDecodeError as fault:
        raise _invalid_json(f"it is not UTF-8 (byte {fault.start})") from None
    except ValueError as fault:  # from msgspec, from json, or for an integer of thousands of digits
        raise _invalid_json(str(fault)) from None
    pause()
    return _encodable(body, raw)


def decode_exactly(raw: bytes) -> Any:
    """What `decode_body` returns, but with integers as they are, up to some thousand digits: it
    cannot be stored. Raises what `decode_body` raises."""
    body = decode_body(raw)
    return clean_json(_parse_slowly(raw)) if _LONG_INTEGER.search(raw) else body


def count_values(raw: bytes | bytearray, limits: BodyLimits) -> int:
    """How many values a body has, or more. Judges the bytes, before values are made of them: two
    bytes become an object of sixty. Raises RequestTooLarge.

    Commas and brackets in strings are counted too. So strings are left out if there seem to be too
    many values, unless the body is so large that this would take long.
    """
    containers = count_containers(raw)
    count = raw.count(b",") + containers
    if len(raw) < _MIN_COUNTED or weight(count, containers) <= limits.values:
        return count
    if len(raw) > limits.text:
        raise _too_many_values(limits)
    counter = ValueCounter()
    for start in range(0, len(raw), _PIECE):
        counter.feed(raw[start : start + _PIECE])
        if counter.weight > limits.values:
            raise _too_many_values(limits)
    return counter.count


def _too_many_values(limits: BodyLimits) -> RequestTooLarge:
    return RequestTooLarge(f"{limits.values} JSON values, where a list or object counts as four")


def inline_size(body: Any) -> int:
    """Characters of the inline files in the lists of the body."""
    size = 0
    pending = [body[name] for name in _LISTS if name in body] if type(body) is dict else []
    while pending:
        value = pending.pop()
        if type(value) is list:
            pending += value
        elif type(value) is dict:
            for name, inner in value.items():
                if type(inner) is not str:
                    pending.append(inner)
                elif name in _INLINE and len(inner) >= _MIN_INLINE:
                    size += len(inner)
    return size


def _parse(raw: bytes | bytearray) -> Any:
    try:
        body = _decode(raw)
    except msgspec.DecodeError as fault:
        # msgspec refuses lone surrogates, which clients do send. Its messages for them vary, so
        # this looks for their escapes in the bytes. It also refuses numbers that are too large.
        if b"\\ud" not in raw and b"\\uD" not in raw and "out of range" not in str(fault):
            raise
        return clean_json(_parse_slowly(raw))
    return clean_json(body) if b"\\u0000" in raw else body


def _parse_slowly(raw: bytes | bytearray) -> Any:
    return json.loads(
        raw.decode(), parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    return max(-_LARGEST, min(float(digits), _LARGEST))


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else _finite(digits)


def storable_numbers(value: Any) -> Any:
    """JSON whose numbers can be encoded: integers beyond 64 bits become floats, and infinity the
    largest float. A member that is NaN is left out; in a list it becomes null."""
    match value:
        case bool():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else _finite(str(value))
        case float():
            return None if math.isnan(value) else max(-_LARGEST, min(value, _LARGEST))
        case dict():
            return {
                key: storable_numbers(inner)
                for key, inner in value.items()
                if not (isinstance(inner, float) and math.isnan(inner))
            }
        case list():
            return [storable_numbers(inner) for inner in value]
    return value


def clean_text(text: str) -> str:
    """The text with U+FFFD for each character that cannot be stored or encoded."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(value: Any) -> Any:
    """JSON with clean text in keys and values."""
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is dict:
        return {clean_text(key): clean_json(inner) for key, inner in value.items()}
    if kind is list:
        return [clean_json(inner) for inner in value]
    return value


def _encodable(body: Any, raw: bytes | bytearray) -> Any:
    """The body, with floats in the place of integers beyond 64 bits. Encodes it to find what cannot
    be encoded: at 1 GB/s faster than a walk in Python."""
    # A body cannot have more levels than opening brackets.
    deep = raw.count(b"[") + raw.count(b"{") > _MAX_LEVELS - _SPARE_LEVELS
    try:
        try:
            orjson.dumps(_wrapped(body) if deep else body)
        except orjson.JSONEncodeError as fault:
            if "Recursion" in str(fault):
                raise
            body = storable_numbers(body)
            orjson.dumps(_wrapped(body) if deep else body)
    except (orjson.JSONEncodeError, RecursionError):
        raise _invalid_json("it is nested too deeply") from None
    return body


def _wrapped(body: Any) -> Any:
    for _ in range(_SPARE_LEVELS):
        body = [body]
    return body


def _invalid_json(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"The request body could not be parsed as JSON: {reason}.", code="invalid_json"
    )
