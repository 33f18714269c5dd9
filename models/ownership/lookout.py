"""Which other processes a heartbeat looks at, and what it has seen of them, for the watch
(models/ownership/watch.py).

Three processes have a *seat*, an advisory lock of the heartbeat's session: they look at all others.
The rest look at a few neighbours, and whether a seat is free; where there are many, every two
seconds. So what the watch costs grows with the processes, and not with their square. A seat is free
as soon as its process dies. Processes that only stand still keep theirs: their neighbours declare
them dead when their leases have expired, and end their sessions.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from models.db.queries.leases import NO_LOOK, Look, RenewedLease, WatchedProcess

_NEIGHBOUR_INTERVAL = 2.0
"""Seconds between two looks of a process without a seat, among many."""
_FEW = 5
"""Other processes. Among so few, each looks with each heartbeat."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a heartbeat has seen."""

    processes: list[WatchedProcess]
    at: float
    """when the answer arrived, on the monotonic clock of this process"""
    answer_time: float
    """seconds"""
    gap: float
    """the most seconds between two heartbeats since the sighting before"""


class Lookout:
    """What the thread of the heartbeat looks at. What it sees goes to the event loop."""

    def __init__(self, *, leaves_seats: bool) -> None:
        """`leaves_seats`: for the first look, to others."""
        self._leaves_seats = leaves_seats
        self._seat: int | None = None
        self._among_few = True
        self._looked_at = 0.0
        self._beat_at = time.monotonic()
        self._gap = 0.0
        self._tell: Callable[[Sighting | None], None] | None = None

    def sightings(self) -> "Sightings":
        """What is seen from now on, for the running event loop."""
        loop, sightings = asyncio.get_running_loop(), Sightings()

        def tell(sighting: Sighting | None) -> None:
            # The loop may have ended: then nobody watches.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(sightings.put, sighting)

        self._tell = tell
        return sightings

    def look(self) -> Mapping[str, object]:
        """The values of the next heartbeat for what it is to look at."""
        if self._tell is None:
            return NO_LOOK
        if self._seat is not None:
            return {"takes_seat": False, "look": Look.ALL.value}
        if self._among_few or time.monotonic() - self._looked_at >= _NEIGHBOUR_INTERVAL:
            return {"takes_seat": not self._leaves_seats, "look": Look.NEIGHBOURS.value}
        return NO_LOOK

    def see(self, renewed: RenewedLease, sent: float) -> None:
        """`sent`: when the heartbeat was sent, on the monotonic clock."""
        self._gap = max(self._gap, sent - self._beat_at)
        self._beat_at = sent
        if renewed.watched is None or self._tell is None:
            return
        now = time.monotonic()
        self._seat = renewed.seat if self._seat is None else self._seat
        self._leaves_seats = False
        self._looked_at = sent
        processes = list(map(WatchedProcess.from_json, renewed.watched))
        self._among_few = len(processes) <= _FEW
        self._tell(Sighting(processes, now, now - sent, self._gap))
        self._gap = 0.0

    def end_session(self) -> None:
        """The session of the heartbeat has ended, and with it the seat."""
        self._seat = None
        if self._tell is not None:
            self._tell(None)


class Sightings:
    """The latest sighting, for one task of the event loop."""

    def __init__(self) -> None:
        self._latest: Sighting | None = None
        self._is_interrupted = False
        self._arrived = asyncio.Event()

    def put(self, sighting: Sighting | None) -> None:
        """Replaces an earlier one that was not taken. None: Postgres could not be asked."""
        self._latest = sighting
        self._is_interrupted = self._is_interrupted or sighting is None
        self._arrived.set()

    async def latest(self) -> Sighting | None:
        """Waits for the next one. None: what was seen before proves nothing any more."""
        await self._arrived.wait()
        if self._is_interrupted:
            self._is_interrupted = False
            if self._latest is None:
                self._arrived.clear()
            return None
        self._arrived.clear()
        return self._latest
