"""Errors for requests about vector stores."""

from features.retrieval.search import SearchTooSlow
from models.errors import INSUFFICIENT_QUOTA, QuotaExceeded, Unavailable

_RETRY_WHEN_STORED = 60.0
"""Seconds after which a client tries again whose project has as much as it may."""


def quota_exceeded(limit: str) -> QuotaExceeded:
    """The error for a project that has as much as it may."""
    return QuotaExceeded(
        f"You exceeded your current quota: this project is limited to {limit}.",
        kind=INSUFFICIENT_QUOTA,
        code=INSUFFICIENT_QUOTA,
        wait=_RETRY_WHEN_STORED,
        may_retry=False,
    )


def too_slow(error: SearchTooSlow) -> Unavailable:
    """The error for a search that has reached its time limit. A retry would take as long."""
    refusal = Unavailable(str(error))
    refusal.headers = {"x-should-retry": "false"}
    return refusal
