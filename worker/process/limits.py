"""What one worker process may take on: how many responses at a time (slots), and how much memory.

One slot in ten is reserved for foreground responses, and as many are kept for background responses
while some of them wait (ADR 0041). Memory that is left may be used by what begins (ADR 0039).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from models.process import resident_bytes

_RESERVED_FRACTION = 10
"""One slot in this many is reserved."""

QUARANTINE_SLOTS = 128
"""The slots of a quarantine worker. How many suspects run in them at a time follows from their
crashes (worker/intake/quarantine.py)."""


def slots_for(background: int) -> int:
    """The slots of a worker that runs this many background responses at a time."""
    return -(-background * _RESERVED_FRACTION // (_RESERVED_FRACTION - 1))


def reserved_slots(slots: int) -> int:
    """How many of the slots only foreground responses use."""
    return slots // _RESERVED_FRACTION


def background_slots(slots: int) -> int:
    """How many of the slots foreground responses leave to background ones that wait: as many as are
    reserved for themselves, at least one, and never all."""
    return max(0, min(max(1, reserved_slots(slots)), slots - 1))


_ADMISSION_SHARE = 0.75
_PRESSURE_SHARE = 0.9
"""Of what the budget leaves above the memory of the idle process."""
_CLAIM_BYTES = 256 * 1024
"""What a response usually needs. One with a long history reserves more before it reads it."""
_LOAD_BYTES = 64 * 1024 * 1024
"""Reserved for each history that is being read, whose size is not known before."""
_SENDING_FACTOR = 2
"""A history that was read is translated, and encoded."""
LEAST_HEADROOM = 64 * 1024 * 1024
"""Bytes that a budget must leave above the idle process."""
_LONGEST_WAIT = 5.0
"""Seconds that a claimed response waits here to read its history. Then another worker may claim
it."""


class MemoryBudget:
    """The budget of one worker process, in bytes of resident memory.

    Below the admission mark responses are claimed. Between it and the pressure mark the running
    ones go on. Above that mark some of them are handed over (worker/process/memory_pressure.py),
    and at the limit the largest one is stopped at once.

    It is no `SharedBudget` (models/load/budget.py): what is used is measured, and not reserved.
    """

    def __init__(self, limit: int | None) -> None:
        """Measures the idle process. None: there is no limit."""
        self.limit = limit
        self.resident = self.idle = resident_bytes() or 0
        """`resident`: when it was measured last. `idle`: before the first response."""
        self.has_refused = False
        """A claim was refused; those who wait are notified when claims are allowed again."""
        self._claims = 0
        """Responses claimed since the last measurement, which does not show them."""
        self._loads = 0
        """Histories that are being read."""
        self._waiting = 0
        """Responses that wait to read their history. No other one is claimed meanwhile."""
        self._loaded = self._loaded_before = 0
        """What histories that were just read will still need: they are translated and sent, which
        the last measurement does not show. `_loaded_before`: those before that measurement."""
        self._changed = asyncio.Event()

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget, and the system shows what the process uses."""
        return self.limit is not None and self.idle > 0

    @property
    def headroom(self) -> int:
        """Bytes of the budget above the memory of the idle process."""
        return 0 if self.limit is None else max(0, self.limit - self.idle)

    @property
    def admission_mark(self) -> int:
        """Above it no response is claimed."""
        return self.idle + int(_ADMISSION_SHARE * self.headroom)

    @property
    def pressure_mark(self) -> int:
        """Above it responses are handed over."""
        return self.idle + int(_PRESSURE_SHARE * self.headroom)

    @property
    def is_open(self) -> bool:
        """Whether a response may be claimed."""
        return self.claims_that_fit(1) > 0

    @property
    def is_over_limit(self) -> bool:
        """Whether the process uses more than its budget."""
        return self.limit is not None and self.is_limited and self.resident >= self.limit

    def claims_that_fit(self, most: int) -> int:
        """How many responses may be claimed now, at most `most`."""
        if not self.is_limited:
            return most
        fitting = 0 if self._waiting else min(most, self._room() // _CLAIM_BYTES - self._claims)
        self.has_refused |= fitting <= 0 < most
        return max(0, fitting)

    def _room(self) -> int:
        """Bytes that responses may begin to use."""
        return self.admission_mark - self.resident - self._loaded - self._loaded_before

    def measure_idle(self) -> None:
        """The process is ready, and has not begun a response."""
        self.measure()
        self.idle = self.resident

    def count_claims(self, count: int) -> None:
        """So many claims begin."""
        self._claims += count

    def measure(self) -> None:
        """Looks how much memory the process uses now."""
        self.resident = resident_bytes() or 0
        self._claims = 0
        self._loaded_before, self._loaded = self._loaded, 0
        self._changed.set()

    def count_history(self, size: int) -> None:
        """A history of about so many bytes was read."""
        self._loaded += _SENDING_FACTOR * size

    @asynccontextmanager
    async def load(self) -> AsyncIterator[bool]:
        """Reserves memory in which a history is read. False: for some seconds there was none, and
        the response is to be given up. One history at a time may always be read below the admission
        mark."""
        if not self.is_limited:
            yield True
            return
        is_reserved = await self._reserve()
        try:
            yield is_reserved
        finally:
            if is_reserved:
                self._loads -= 1
                self._changed.set()

    async def _reserve(self) -> bool:
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_WAIT):
                    while not self._can_load():
                        self._changed.clear()
                        await self._changed.wait()
                    self._loads += 1
                    return True
            return False
        finally:
            self._waiting -= 1

    def _can_load(self) -> bool:
        self.resident = resident_bytes() or 0
        room = self._room()
        return room > 0 and (self._loads == 0 or room >= (self._loads + 1) * _LOAD_BYTES)
