"""Notices when the machine has too little CPU for promises about time.

The clients run with the same priority as the product's processes. While their thread waits for a
CPU for most of the time, so do those, and no limit in seconds means anything.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.audit.record import Fault

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Of the main thread: nanoseconds on a CPU, nanoseconds of waiting for one, and a count."""
_INTERVAL = 1.0
_STARVED_SHARE = 0.5
"""Share of the time that the thread waits for a CPU. A campaign alone on two cores has a tenth."""


async def record_starvation(record_fault: Callable[[], Fault]) -> None:
    """Records a fault for each time in which the thread waits too long; runs until cancelled.

    It records nothing where Linux's statistics are not available.
    """
    fault: Fault | None = None
    began, waited = time.monotonic(), _seconds_waited()
    while True:
        await asyncio.sleep(_INTERVAL)
        now, waited_now = time.monotonic(), _seconds_waited()
        if (waited_now - waited) / (now - began) > _STARVED_SHARE:
            if fault is None:
                fault = record_fault()
                fault.begin = began
            fault.end = now
        else:
            fault = None
        began, waited = now, waited_now


def _seconds_waited() -> float:
    if not _SCHEDSTAT.exists():
        return 0.0
    return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
