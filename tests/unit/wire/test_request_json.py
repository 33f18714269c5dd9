"""Bytes become JSON that can be stored and encoded, or a 400 (docs/wire.md)."""

import sys
from typing import Any

import orjson
import pytest

from models.errors import InvalidRequest, RequestTooLarge
from models.wire.json_input import BodyLimits, decode_body, decode_request
from tests.support.bad_bodies import INVALID_JSON

LARGEST = sys.float_info.max

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
    ("65 bits", b"[18446744073709551616, -9223372036854775809]", [2.0**64, -(2.0**63)]),
    ("as JavaScript writes 2^64", b'{"maximum": 18446744073709552000}', {"maximum": 2.0**64}),
    ("100 digits", b"1" + b"0" * 99, 1e99),
    ("5000 digits", b"-" + b"1" * 5000, -LARGEST),
    ("5000 digits beside a surrogate", rb'["\ud800", ' + b"1" * 5000 + b"]", ["\ufffd", LARGEST]),
    ("beyond a double", b"[1e400, -1e999]", [LARGEST, -LARGEST]),
    ("beyond a double beside a surrogate", rb'["\ud800", 1e999]', ["\ufffd", LARGEST]),
    ("190 levels", b"[" * 190 + b"]" * 190, None),
]


@pytest.mark.parametrize(
    ("raw", "expected"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD]
)
def test_good_json_can_be_encoded_again(raw: bytes, expected: Any) -> None:
    body = decode_body(raw)
    orjson.dumps(body)
    if expected is not None:
        assert body == expected


@pytest.mark.parametrize(
    "raw", [row[1] for row in INVALID_JSON], ids=[row[0] for row in INVALID_JSON]
)
def test_bad_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_body(raw)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (
        400,
        "invalid_json",
        None,
    )
    assert len(refusal.value.message) < 200


LIMITS = BodyLimits(size=1_000_000, text=200_000, values=50_000)
BASE64 = b"QUJD" * 100_000


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"input": "' + b"x" * 190_000 + b'"}', id="text"),
        pytest.param(b'{"input": "' + b'[],\\",' * 25_000 + b'"}', id="brackets in text"),
        pytest.param(b'{"input": [{"content": [{"file_data": "' + BASE64 + b'"}]}]}', id="file"),
        pytest.param(b'{"messages": [{"image_url": {"url": "' + BASE64 + b'"}}]}', id="image"),
        pytest.param(b'{"a": [' + b"0," * 49_000 + b"0]}", id="values"),
        pytest.param(b'{"a": [' + b'{"":0},' * 9_990 + b"0]}", id="objects"),
    ],
)
def test_bodies_within_the_limits_are_decoded(raw: bytes) -> None:
    assert decode_request(raw, LIMITS) == orjson.loads(raw)


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        pytest.param(b'{"input": "' + b"x" * 200_000 + b'"}', "200000 bytes", id="text"),
        pytest.param(b'{"instructions": "' + BASE64 + b'"}', "200000 bytes", id="instructions"),
        pytest.param(
            b'{"tools": [{"parameters": {"file_data": "' + BASE64 + b'"}}]}',
            "200000 bytes",
            id="a schema with the name of a file",
        ),
        pytest.param(b'{"a": [' + b'{"":0},' * 10_000 + b"0]}", "50000 JSON values", id="objects"),
        pytest.param(b"[" + b"[  ]," * 15_000 + b"0]", "50000 JSON values", id="empty lists"),
        pytest.param(b"[" + b"{}," * 300_000 + b"0]", "50000 JSON values", id="large"),
        pytest.param(b'["' + b"[" * 300_000 + b'"]', "50000 JSON values", id="large text"),
    ],
)
def test_bodies_over_a_limit_are_refused(raw: bytes, limit: str) -> None:
    with pytest.raises(RequestTooLarge) as refusal:
        decode_request(raw, LIMITS)
    assert f"larger than the limit of {limit}" in refusal.value.message
