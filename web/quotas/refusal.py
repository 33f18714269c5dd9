"""The error of a request that a quota refuses, in the words of OpenAI."""

from datetime import UTC, datetime, timedelta

from models.errors import INSUFFICIENT_QUOTA, QuotaExceeded
from models.projects.quotas import Limits, Quota
from web.http.rate_headers import format_reset

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
        return QuotaExceeded(
            f"You exceeded your current quota: this project is limited to {limit} {quota.value}.",
            kind=INSUFFICIENT_QUOTA,
            code=INSUFFICIENT_QUOTA,
            wait=_until_renewed(quota, now),
            may_retry=False,
        )
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
