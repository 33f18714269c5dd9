"""Reasons of failures become a fixed set of classes."""

import pytest

from worker.metrics import error_class


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("upstream_429", "rate_limited"),
        ("upstream_401", "credential"),
        ("upstream_403", "credential"),
        ("upstream_404", "request"),
        ("upstream_418", "request"),
        ("upstream_500", "server"),
        ("upstream_599", "server"),
        ("upstream_307", "redirect"),
        ("upstream_999", "other"),
        ("upstream_unreachable", "unreachable"),
        ("upstream_garbage", "garbage"),
        ("token_gap", "token_gap"),
        ("deadline", None),
        ("failed_by_operator", None),
        ("upstream_", None),
        ("whatever", None),
    ],
)
def test_a_reason_has_one_class(reason: str, expected: str | None) -> None:
    assert error_class(reason) == expected
