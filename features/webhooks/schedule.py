"""When a delivery that failed is tried again, and for how long."""

import random
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

EXPIRY = timedelta(days=3)
"""After that a delivery is given up."""
DISABLE_AFTER = timedelta(days=5)
"""An endpoint whose tries have all failed for so long is disabled."""
LONGEST_ENDPOINT_PAUSE = 300
"""Seconds for which an endpoint that fails gets nothing, at most."""
_PAUSES = (5, 30, 120, 600, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""Seconds after the first try, the second, and so on; the last one repeats."""
_LONGEST_RETRY_AFTER = 24 * 3600
"""Seconds. A `Retry-After` beyond it counts as this long."""
_MAX_DIGITS = 9


def pause_after(attempts: int, retry_after: float | None) -> timedelta:
    """How long a delivery waits after so many tries. `retry_after`: seconds that the endpoint has
    asked for. A random tenth more, so that what failed together does not come back together."""
    seconds = float(_PAUSES[min(attempts, len(_PAUSES)) - 1])
    seconds = max(seconds, min(retry_after or 0.0, _LONGEST_RETRY_AFTER))
    return timedelta(seconds=seconds * (1 + random.random() / 10))  # noqa: S311


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds from `now` that a header `Retry-After` names: a number of seconds, or a date
    (RFC 9110, 10.2.3). None for anything else, and for a date that is past."""
    value = value.strip()
    if value.isdecimal():
        return float(value) if len(value) <= _MAX_DIGITS else float(_LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return seconds if seconds > 0 else None
