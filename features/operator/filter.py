"""Which responses an operator wants to see or change: the conditions of a list, or the beginnings
of ids."""

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

from models.lifecycle import OperatorStatus

DEFAULT_SINCE = timedelta(hours=24)
"""How old a response may be that a list shows, unless only open ones are requested."""
OPEN = [OperatorStatus.QUEUED, OperatorStatus.IN_PROGRESS, OperatorStatus.RETRYING]
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
"""Before and behind all ids."""
_MIN_PREFIX_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a response must fit; None: any."""

    statuses: list[OperatorStatus] | None = None
    project: str | None = None
    model: str | None = None
    upstream: str | None = None
    reason: str | None = None
    since: timedelta | None = None
    metadata: tuple[str, str] | None = None
    """a key of the response's metadata and its value"""
    window: str | None = None
    missed: bool = False
    """only those that have missed their completion window"""
    continuation: str | None = None
    """the `continuation_id`"""

    @property
    def is_empty(self) -> bool:
        """No condition is given."""
        return self == Filter()

    @property
    def is_open_only(self) -> bool:
        """Only responses that have not ended fit it."""
        return bool(self.statuses) and set(self.statuses or ()) <= set(OPEN)

    def restricted_to_open(self) -> Self:
        """The same conditions, for an action that only an open response permits."""
        return replace(self, statuses=self.statuses or OPEN)

    def values(self, max_rows: int, before: UUID = LAST_ID) -> dict[str, Any]:
        """The parameters of the statements in models/db/queries/listing.py. `before`: only
        responses with smaller ids, the next page."""
        since = self.since
        if since is None and not self.is_open_only:
            since = DEFAULT_SINCE
        key, value = self.metadata or (None, None)
        return {
            "statuses": [status.value for status in self.statuses] if self.statuses else None,
            "project": self.project,
            "model": self.model,
            "upstream": self.upstream,
            "reason": self.reason,
            "metadata_key": key,
            "metadata_value": value,
            "window": self.window,
            "missed": self.missed,
            "continuation": self.continuation,
            "since": since,
            "before": before,
            "down_to": FIRST_ID,
            "max_rows": max_rows,
        }


def id_prefix(name: str) -> str | None:
    """The hexadecimal digits of the beginning of an id; None if `name` is not one."""
    digits = name.replace("-", "").lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX_LENGTH},32}}", digits) else None


def id_range(name: str) -> dict[str, UUID] | None:
    """The parameters of `listing.RESPONSES_BY_PREFIX` for a response's id or the beginning of one;
    None if `name` is neither."""
    digits = id_prefix(name.removeprefix("resp_"))
    if digits is None:
        return None
    return {"first": UUID(digits.ljust(32, "0")), "last": UUID(digits.ljust(32, "f"))}
