"""Token usage of a turn: the upstream's counts, and the Responses shape of them."""

from collections.abc import Mapping
from typing import Any

from models.wire.token_counts import TokenCounts


def usage_json(counts: TokenCounts | None) -> dict[str, Any] | None:
    """`usage` of the Response object; None if input or output is not known, never an estimate.

    Both details objects are required, with numbers: unknown counts in them are 0, not null.
    """
    resolved = counts.resolved() if counts is not None else None
    if resolved is None:
        return None
    usage = {
        "input_tokens": resolved.input,
        "input_tokens_details": {
            "cached_tokens": resolved.cached,
            "cache_write_tokens": resolved.cache_write,
        },
        "output_tokens": resolved.output,
        "output_tokens_details": {"reasoning_tokens": resolved.reasoning},
        "total_tokens": resolved.input + resolved.output,
    }
    return _sum(usage, counts.others) if counts is not None and counts.others else usage


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
    added: dict[str, Any] = _sum(so_far, turn)
    return added


def _sum(so_far: Any, newer: Any) -> Any:
    """Numbers are added, in objects too; of anything else the newer one counts."""
    if isinstance(so_far, Mapping) and isinstance(newer, Mapping):
        names = {**so_far, **newer}
        return {name: _sum(so_far.get(name), newer.get(name)) for name in names}
    if newer is None:
        return so_far
    return so_far + newer if _is_number(so_far) and _is_number(newer) else newer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
