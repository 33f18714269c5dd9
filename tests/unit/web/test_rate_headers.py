"""The headers that say what is left of a rate, as OpenAI writes them."""

import pytest

from features.quotas.refusal import format_reset, rate_headers
from models.projects.quotas import Limits


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0002, "1ms"),
        (0.02, "20ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (86.4, "1m26.4s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
    ],
)
def test_a_reset_is_a_duration_as_go_writes_it(seconds: float, text: str) -> None:
    assert format_reset(seconds) == text


def test_headers_have_only_the_rates_that_are_limited() -> None:
    assert rate_headers(Limits(running=3), 0, 0) == {}
    assert rate_headers(Limits(requests_per_minute=60), 1, 0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }
    both = rate_headers(Limits(requests_per_minute=5000, tokens_per_minute=150000), 0.012, 90)
    assert both["x-ratelimit-remaining-requests"] == "4999"
    assert both["x-ratelimit-reset-requests"] == "12ms"
    assert both["x-ratelimit-remaining-tokens"] == "0", "what is owed is not negative"
    assert both["x-ratelimit-reset-tokens"] == "1m30s"
