"""The lines of a batch's input, however its bytes are divided."""

import json
from collections.abc import AsyncIterator

import pytest

from features.batches.lines import check_lines, group_lines, read_lines
from models.wire.json_input import BodyLimits

LIMITS = BodyLimits(200, 200, 1000)


async def _chunks(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def _line(number: int) -> bytes:
    request = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/embeddings", "body": {}}
    return json.dumps(request).encode()


async def _errors(content: bytes, size: int) -> list[tuple[str, int]]:
    """Code and line of each error, in groups as a worker checks them."""
    found: list[tuple[str, int]] = []
    async for group in group_lines(read_lines(_chunks(content, size), 0, 0, LIMITS.size)):
        errors = check_lines(group, "/v1/embeddings", LIMITS).errors
        found += [(error["code"], error["line"]) for error in errors]
    return found


async def test_the_number_of_a_broken_line_is_right_behind_forty_thousand_others() -> None:
    lines = [b"" if number % 50 else _line(number) for number in range(40_000)]
    content = b"\n".join([*lines, b'{"custom_id"', _line(40_001)])
    assert await _errors(content, 256 * 1024) == [("invalid_json_line", 40_001)]


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
async def test_a_long_line_is_skipped_and_the_lines_behind_it_are_read(size: int) -> None:
    long = b"x" * (LIMITS.size + 1)
    content = b"\n".join([_line(1), long, _line(2), b"", b"[]", long])
    assert await _errors(content, size) == [
        ("line_too_long", 2),
        ("invalid_json_line", 5),
        ("line_too_long", 6),
    ]


async def test_reading_goes_on_at_the_byte_behind_a_line() -> None:
    content = b"\n".join(_line(number) for number in range(1, 6)) + b"\n"
    lines = [line async for line in read_lines(_chunks(content, 50), 0, 0, LIMITS.size)]
    assert (len(lines), lines[-1].end) == (5, len(content))
    third = lines[2]
    rest = _chunks(content[third.end :], 50)
    assert [line async for line in read_lines(rest, third.number, third.end, LIMITS.size)] == [
        *lines[3:]
    ]
