"""What a turn cost: the upstream's count of tokens in, the Responses shape out (contract §3, §7.2)."""

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """One upstream's own count. What it did not say is 0; a count nobody sent is no `Usage` at all, never an estimate."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """`usage` as the Response object holds it: both details objects are required, zeros not null."""
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


def add_usage(so_far: dict[str, Any] | None, turn: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two usages in the Responses shape, summed (server-side tool rounds, contract §7.2).

    A side that is None adds nothing: what is known so far is kept when a later turn is cut before its count came.
    """
    if so_far is None or turn is None:
        return turn if so_far is None else so_far
    return {
        key: add_usage(value, turn[key]) if isinstance(value, dict) else value + turn[key]
        for key, value in so_far.items()
    }
