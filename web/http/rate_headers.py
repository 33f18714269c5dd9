"""The headers that say what is left of a project's rates, in the form of OpenAI."""

import math

from models.projects.quotas import WINDOW, Limits

RATE_HEADERS = tuple(
    f"x-ratelimit-{part}-{name}"
    for name in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
)
"""All of them."""


def rate_headers(limits: Limits, requests: float, tokens: float) -> dict[str, str]:
    """The headers of an answer. `requests`, `tokens`: seconds until each rate is unused, which is
    what OpenAI calls its reset."""
    headers: dict[str, str] = {}
    for name, limit, unused_in in (
        ("requests", limits.requests_per_minute, requests),
        ("tokens", limits.tokens_per_minute, tokens),
    ):
        if limit:
            left = max(0, math.floor(limit * (1 - unused_in / WINDOW) + 1e-6))
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(min(limit, left))
            headers[f"x-ratelimit-reset-{name}"] = format_reset(unused_in)
    return headers


def format_reset(seconds: float) -> str:
    """A duration as Go writes it: `20ms`, `1s`, `1.5s`, `6m0s`. Rounded up to milliseconds."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
