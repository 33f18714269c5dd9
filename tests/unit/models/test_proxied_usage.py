"""Usage in the bytes of answers that pass unchanged."""

import json

import pytest

from models.wire.token_counts import TokenUsage, find_usage

COUNTS = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
IMAGES = {
    "total_tokens": 8,
    "input_tokens": 5,
    "output_tokens": 3,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens_details": {"reasoning_tokens": 1},
}


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (json.dumps({"choices": [], "usage": COUNTS}), TokenUsage(5, 2, 3, 1)),
        (json.dumps({"usage": COUNTS, "choices": [{"text": "x"}]}), TokenUsage(5, 2, 3, 1)),
        (json.dumps({"created": 1, "data": [], "usage": IMAGES}), TokenUsage(5, 2, 3, 1)),
        ('{"usage": {"prompt_tokens": 4, "total_tokens": 4}}', TokenUsage(4, 0, 0, 0)),
        ('{"usage": {"total_tokens": 9}}', TokenUsage(9, 0, 0, 0)),
        ('{"usage": {"type": "duration", "seconds": 2.5}}', TokenUsage(0, 0, 0, 0, 3)),
        (
            f'data: {{"usage": null}}\n\ndata: {json.dumps({"usage": COUNTS})}\n\ndata: [DONE]\n\n',
            TokenUsage(5, 2, 3, 1),
        ),
        (
            f'data: {{"usage": {json.dumps(COUNTS)}}}\n\ndata: {{"usage": {{"input_tokens": 0}}}}',
            TokenUsage(5, 2, 3, 1),
        ),
        (
            json.dumps({"usage": {**COUNTS, "total_tokens": 20, "reasoning_tokens": 12}}),
            TokenUsage(5, 2, 15, 12),
        ),
        ('{"usage": {"prompt_tokens": "many", "completion_tokens": -1}}', TokenUsage(0, 0, 0, 0)),
        ('data: {"choices": [], "usage": null}\n\ndata: [DONE]\n\n', None),
        ('{"content": "the \\"usage\\": {"}', None),
        ('"usage":' + "[" * 5000, None),
        ("", None),
    ],
)
def test_the_usage_of_an_answer(piece: str, expected: TokenUsage | None) -> None:
    assert find_usage(piece.encode()) == expected
