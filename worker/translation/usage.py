"""Token usage of a turn: the upstream's counts, and the Responses shape of them."""

from typing import Any

from models.wire.token_counts import TokenCounts


def usage_json(counts: TokenCounts | None) -> dict[str, Any] | None:
    """`usage` of the Response object; None if input or output is not known, never an estimate.

    Both details objects are required, with numbers: unknown counts in them are 0, not null.
    """
    resolved = counts.resolved() if counts is not None else None
    if resolved is None:
        return None
    return {
        "input_tokens": resolved.input,
        "input_tokens_details": {
            "cached_tokens": resolved.cached,
            "cache_write_tokens": resolved.cache_write,
        },
        "output_tokens": resolved.output,
        "output_tokens_details": {"reasoning_tokens": resolved.reasoning},
        "total_tokens": resolved.input + resolved.output,
    }


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
