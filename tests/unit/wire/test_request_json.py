"""Bytes become JSON that can be stored and encoded, or a 400 (design §9, §11)."""

from typing import Any

import orjson
import pytest

from models.errors import InvalidRequest
from models.wire.json_input import decode_body

GOOD: list[tuple[str, bytes, Any]] = [
    ("plain", b'{"a": [1, 2.5, true, null, "\xc3\xa9"]}', {"a": [1, 2.5, True, None, "é"]}),
    ("lone high surrogate", rb'"a\ud800b"', "a\ufffdb"),
    ("lone low surrogate", rb'"\uDC00"', "\ufffd"),
    ("surrogate in a key", rb'{"\ud800": ["\ud800"]}', {"\ufffd": ["\ufffd"]}),
    ("a pair", rb'"\ud83d\ude00"', "😀"),
    ("a pair beside a lone one", rb'["\ud83d\ude00", "\ud83d"]', ["😀", "\ufffd"]),
    ("NUL", rb'{"\u0000": "\u0000x"}', {"\ufffd": "\ufffdx"}),
    ("an escaped backslash before u0000", rb'"\\u0000"', r"\u0000"),
    ("64 bits", b"[18446744073709551615, -9223372036854775808]", [2**64 - 1, -(2**63)]),
    ("190 levels", b"[" * 190 + b"]" * 190, None),
]

BAD: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("half", b'{"a": '),
    ("two", b"{} {}"),
    ("invalid UTF-8", b'{"a": "\xff"}'),
    ("invalid UTF-8 outside of a string", b"\xff"),
    ("an encoded surrogate", b'"\xed\xa0\x80"'),
    ("invalid UTF-8 beside a surrogate", b'["\\ud800", "\xff"]'),
    ("UTF-16", '{"a": 1}'.encode("utf-16")),
    ("a byte order mark", b"\xef\xbb\xbf{}"),
    ("NaN", b"[NaN]"),
    ("NaN beside a surrogate", rb'["\ud800", NaN]'),
    ("-Infinity beside a surrogate", rb'["\ud800", -Infinity]'),
    ("a float without end", b"[1e999]"),
    ("a float without end beside a surrogate", rb'["\ud800", 1e999]'),
    ("65 bits", b"18446744073709551616"),
    ("65 bits below zero", b"[[-9223372036854775809]]"),
    ("5000 digits", b"1" * 5000),
    ("5000 digits beside a surrogate", rb'["\ud800", ' + b"1" * 5000 + b"]"),
    ("191 levels", b"[" * 191 + b"]" * 191),
    ("a million levels", b"[" * 1_000_000),
    ("a million levels of objects", b'{"a":' * 1_000_000),
    ("a million levels beside a surrogate", rb'["\ud800", ' + b"[" * 1_000_000),
    ("900 levels beside a surrogate", rb'["\ud800", ' + b"[" * 900 + b"]" * 901),
    ("a raw control character", b'"\x00"'),
]


@pytest.mark.parametrize(
    ("raw", "expected"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD]
)
def test_good_json_can_be_encoded_again(raw: bytes, expected: Any) -> None:
    body = decode_body(raw)
    orjson.dumps(body)
    if expected is not None:
        assert body == expected


@pytest.mark.parametrize("raw", [row[1] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_body(raw)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (
        400,
        "invalid_json",
        None,
    )
    assert len(refusal.value.message) < 200
