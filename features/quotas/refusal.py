"""What a client is shown of its quotas, in the form of OpenAI: the error of a refused request, and
the headers with what is left of the rates."""

import math
from datetime import UTC, datetime, timedelta

from models.errors import INSUFFICIENT_QUOTA, QuotaExceeded
from models.projects.quotas import WINDOW, Limits, Quota

_COUNT_WAIT = 1.0
"""Seconds after which a client tries again while too much of the project is open: nobody knows when
something ends."""
_STORED_WAIT = 60.0
"""The same while too much is stored. It is counted again after some time."""


def quota_exceeded(
    limits: Limits, quota: Quota, wait: float, tokens: int, now: float
) -> QuotaExceeded:
    """The error. `wait`: seconds until a rate admits the request; `tokens`: what it asked for;
    `now`: seconds since the epoch."""
    limit: int = getattr(limits, quota.name)
    if quota.is_budget:
        return _used_up(f"{limit} {quota.value}", _until_renewed(quota, now))
    if quota is Quota.tokens_per_minute and tokens > limit:
        message = (
            f"Request too large for this project on {quota.value}: Limit {limit}, Requested "
            f"{tokens}. The input or output tokens must be reduced in order to run successfully."
        )
        return _rate_limited(message, "tokens", 60.0, may_retry=False)
    if quota in (Quota.requests_per_minute, Quota.tokens_per_minute):
        is_requests = quota is Quota.requests_per_minute
        message = (
            f"Rate limit reached for this project on {quota.value}: Limit {limit}, Requested "
            f"{1 if is_requests else tokens}. Please try again in {format_reset(wait)}."
        )
        return _rate_limited(message, "requests" if is_requests else "tokens", wait)
    return too_many_open(limit, quota.value)


def too_many_open(limit: int, what: str, *, may_retry: bool = True) -> QuotaExceeded:
    """The error for a project that has as much open as it may. `may_retry`: it ends soon."""
    message = (
        f"This project has reached its limit of {limit} {what}. "
        "Please try again when one of them has ended."
    )
    wait = _COUNT_WAIT if may_retry else _STORED_WAIT
    return _rate_limited(message, "requests", wait, may_retry=may_retry)


def too_much_stored(limit: str) -> QuotaExceeded:
    """The error for a project that stores as much as it may: `limit`, such as `5 stored files`."""
    return _used_up(limit, _STORED_WAIT)


def _used_up(limit: str, wait: float) -> QuotaExceeded:
    return QuotaExceeded(
        f"You exceeded your current quota: this project is limited to {limit}.",
        kind=INSUFFICIENT_QUOTA,
        code=INSUFFICIENT_QUOTA,
        wait=wait,
        may_retry=False,
    )


def _rate_limited(message: str, kind: str, wait: float, *, may_retry: bool = True) -> QuotaExceeded:
    return QuotaExceeded(
        message, kind=kind, code="rate_limit_exceeded", wait=wait, may_retry=may_retry
    )


def _until_renewed(quota: Quota, now: float) -> float:
    """Seconds until the budget begins anew; for what is stored, until it is worth another try."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if quota is Quota.tokens_per_day:
        return (today + timedelta(days=1)).timestamp() - now
    if quota is Quota.tokens_per_month:
        next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        return next_month.timestamp() - now
    return _STORED_WAIT


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
