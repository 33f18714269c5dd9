"""The errors of vector stores."""

from models.errors import INSUFFICIENT_QUOTA, InvalidRequest, NotFound, QuotaExceeded
from models.wire.checks.faults import shorten

_RETRY_WHEN_STORED = 60.0
"""Seconds after which a client tries again whose project has as much as it may."""


def store_not_found(public_id: str) -> NotFound:
    """The error for a store that the project does not have."""
    return NotFound(
        f"Vector store with id '{shorten(public_id)}' not found.", param="vector_store_id"
    )


def expired(public_id: str) -> InvalidRequest:
    """The error for what is not possible with a store that has expired."""
    return InvalidRequest(
        f"Vector store '{shorten(public_id)}' is expired.",
        param="vector_store_id",
        code="vector_store_expired",
    )


def quota_exceeded(limit: str) -> QuotaExceeded:
    """The error for a project that has as much as it may."""
    return QuotaExceeded(
        f"You exceeded your current quota: this project is limited to {limit}.",
        kind=INSUFFICIENT_QUOTA,
        code=INSUFFICIENT_QUOTA,
        wait=_RETRY_WHEN_STORED,
        may_retry=False,
    )
