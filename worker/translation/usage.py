"""Token usage of a turn: the upstream's counts, and the Responses shape of them."""

from typing import Any

import msgspec

MAX_TOKEN_COUNT = 2**53
"""The largest count that every JSON reader represents exactly."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """An upstream's token counts. A count that it did not send is 0; without any count there is
    no `Usage`, never an estimate."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """`usage` of the Response object. Both details objects are required; unknown counts are
        0, not null."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.total_tokens,
        }


def bounded_count(count: int | None) -> int:
    """A count as `Usage` stores it: 0 for None and below, `MAX_TOKEN_COUNT` at most."""
    return min(max(count or 0, 0), MAX_TOKEN_COUNT)


def as_reasoning(usage: dict[str, Any]) -> dict[str, Any]:
    """A usage in the Responses shape, with all its output counted as reasoning."""
    return {**usage, "output_tokens_details": {"reasoning_tokens": usage["output_tokens"]}}


def add_usage(so_far: dict[str, Any] | None, turn: dict[str, Any] | None) -> dict[str, Any] | None:
    """The sum of two usages in the Responses shape.

    None adds nothing: the earlier usage is kept when a later turn is interrupted before its counts
    arrive.
    """
    if so_far is None or turn is None:
        return turn if so_far is None else so_far
    return {
        key: add_usage(value, turn[key]) if isinstance(value, dict) else value + turn[key]
        for key, value in so_far.items()
    }
