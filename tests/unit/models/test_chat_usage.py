"""Usage in the bytes of chat completions that pass unchanged."""

import json

import pytest

from models.wire.chat_usage import ChatUsage, find_usage

COUNTS = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (json.dumps({"choices": [], "usage": COUNTS}), ChatUsage(5, 2, 3, 1)),
        (json.dumps({"usage": COUNTS, "choices": [{"text": "x"}]}), ChatUsage(5, 2, 3, 1)),
        (
            f'data: {{"usage": null}}\n\ndata: {json.dumps({"usage": COUNTS})}\n\ndata: [DONE]\n\n',
            ChatUsage(5, 2, 3, 1),
        ),
        ('{"usage": {"prompt_tokens": "many", "completion_tokens": -1}}', ChatUsage(0, 0, 0, 0)),
        ('data: {"choices": [], "usage": null}\n\ndata: [DONE]\n\n', None),
        ('{"content": "the \\"usage\\": {"}', None),
        ('"usage":' + "[" * 5000, None),
        ("", None),
    ],
)
def test_the_usage_of_a_completion(tail: str, expected: ChatUsage | None) -> None:
    assert find_usage(tail.encode()) == expected
