"""When a delivery that failed is tried again, and for how long."""

import random
from datetime import timedelta

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


def pause_after(attempts: int, retry_after: float | None) -> timedelta:
    """How long a delivery waits after so many tries. `retry_after`: seconds that the endpoint has
    asked for. A random tenth more, so that what failed together does not come back together."""
    seconds = float(_PAUSES[min(attempts, len(_PAUSES)) - 1])
    seconds = max(seconds, min(retry_after or 0.0, _LONGEST_RETRY_AFTER))
    return timedelta(seconds=seconds * (1 + random.random() / 10))  # noqa: S311
