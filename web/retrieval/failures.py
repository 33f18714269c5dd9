"""The error for a project that has as much in vector stores as it may."""

from models.errors import INSUFFICIENT_QUOTA, QuotaExceeded

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
