"""Token counts of each vendor, with OpenAI's meaning."""

from typing import Any

import pytest

from models.wire.token_counts import ResolvedCounts, TokenCounts, read_counts


def details(**counts: int) -> dict[str, Any]:
    return counts


OPENAI = {"prompt_tokens": 12, "completion_tokens": 2}
CASES: list[Any] = [
    pytest.param(
        {**OPENAI, "total_tokens": 331, "completion_tokens_details": details(reasoning_tokens=317)},
        (12, 319, 0, 0, 317),
        id="xAI: reasoning beside the output",
    ),
    pytest.param(
        {
            "prompt_tokens": 12,
            "completion_tokens": 319,
            "total_tokens": 331,
            "completion_tokens_details": details(reasoning_tokens=317),
        },
        (12, 319, 0, 0, 317),
        id="OpenAI: reasoning in the output",
    ),
    pytest.param(
        {**OPENAI, "completion_tokens_details": details(reasoning_tokens=317)},
        (12, 319, 0, 0, 317),
        id="more reasoning than output, no total",
    ),
    pytest.param(
        {**OPENAI, "total_tokens": 14, "reasoning_tokens": 317},
        (12, 319, 0, 0, 317),
        id="more reasoning than output, a total without it",
    ),
    pytest.param(
        {**OPENAI, "total_tokens": 331}, (12, 319, 0, 0, 317), id="Gemini: reasoning in the total"
    ),
    pytest.param(
        {
            "promptTokenCount": 12,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 317,
            "totalTokenCount": 331,
            "cachedContentTokenCount": 8,
        },
        (12, 319, 8, 0, 317),
        id="Gemini's own names",
    ),
    pytest.param({**OPENAI, "reasoning_tokens": 1}, (12, 2, 0, 0, 1), id="bare reasoning_tokens"),
    pytest.param({**OPENAI, "cached_tokens": 4}, (12, 2, 4, 0, 0), id="Moonshot: cached_tokens"),
    pytest.param({**OPENAI, "num_cached_tokens": 4}, (12, 2, 4, 0, 0), id="num_cached_tokens"),
    pytest.param(
        {**OPENAI, "prompt_token_details": details(cached_tokens=4)},
        (12, 2, 4, 0, 0),
        id="prompt_token_details",
    ),
    pytest.param(
        {**OPENAI, "input_tokens_details": details(cached_tokens=4)},
        (12, 2, 4, 0, 0),
        id="input_tokens_details beside prompt_tokens",
    ),
    pytest.param(
        {**OPENAI, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 8},
        (12, 2, 4, 0, 0),
        id="DeepSeek",
    ),
    pytest.param(
        {**OPENAI, "prompt_tokens_details": details(cached_tokens=0), "cached_tokens": 4},
        (12, 2, 4, 0, 0),
        id="one name has 0",
    ),
    pytest.param(
        {"input_tokens": 12, "output_tokens": 2, "total_tokens": 14},
        (12, 2, 0, 0, 0),
        id="names of the Responses API",
    ),
    pytest.param(
        {
            "prompt_tokens": 132,
            "completion_tokens": 2,
            "total_tokens": 134,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
        },
        (132, 2, 100, 20, 0),
        id="LiteLLM to Anthropic: cached tokens in the input",
    ),
    pytest.param(
        {
            **OPENAI,
            "total_tokens": 134,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
        },
        (132, 2, 100, 20, 0),
        id="cached tokens beside the input, in the total",
    ),
    pytest.param(
        {
            "input_tokens": 12,
            "output_tokens": 2,
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 3,
        },
        (20, 2, 5, 3, 0),
        id="Anthropic's names",
    ),
    pytest.param(
        {**OPENAI, "total_tokens": 14, "cache_read_input_tokens": 100},
        (112, 2, 100, 0, 0),
        id="more cached tokens than input",
    ),
    pytest.param({"prompt_tokens": 9, "total_tokens": 9}, (9, 0, 0, 0, 0), id="no output"),
    pytest.param({"completion_tokens": 2, "total_tokens": 14}, (12, 2, 0, 0, 0), id="no input"),
    pytest.param({**OPENAI, "total_tokens": 3}, (12, 2, 0, 0, 0), id="a total that is too small"),
    pytest.param({"prompt_tokens": "12", "completion_tokens": 2.0}, (12, 2, 0, 0, 0), id="texts"),
    pytest.param(
        {"billed_units": {"input_tokens": 5}, "tokens": {"input_tokens": 12, "output_tokens": 2}},
        (12, 2, 0, 0, 0),
        id="Cohere",
    ),
    pytest.param({"total_tokens": 9}, None, id="a total alone says neither"),
    pytest.param({"prompt_tokens": 9}, None, id="the input alone"),
    pytest.param(
        {"prompt_tokens": 12, "completion_tokens": -1, "total_tokens": 14},
        (12, 2, 0, 0, 0),
        id="one is negative",
    ),
]


@pytest.mark.parametrize(("usage", "resolved"), CASES)
def test_counts_of_vendors(usage: Any, resolved: tuple[int, ...] | None) -> None:
    counts = read_counts(usage)
    assert counts is not None
    assert counts.resolved() == (None if resolved is None else ResolvedCounts(*resolved))


@pytest.mark.parametrize(
    "usage", [None, {}, [], "12", {"prompt_tokens": None}, {"cost": 1}, {"prompt_tokens": -1}]
)
def test_no_counts(usage: Any) -> None:
    assert read_counts(usage) is None


def test_counts_of_one_answer_only_grow() -> None:
    counts = TokenCounts()
    for usage in (
        {"input_tokens": 12, "output_tokens": 1, "cache_read_input_tokens": 5},
        {"output_tokens": 7},
        {"input_tokens": 0, "output_tokens": 9, "total_tokens": None},
        {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
    ):
        newer = read_counts(usage)
        assert newer is not None
        counts = counts.updated(newer)
    assert counts.resolved() == ResolvedCounts(17, 9, 5, 0, 0)
