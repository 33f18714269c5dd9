"""Unknown API keys: those that were sent lately, and how often each network sends new ones."""

import asyncio
import time

from models.errors import TooManyUnknownKeys
from web.http.networks import client_network

_REMEMBERED = 1.0
"""Seconds for which an unknown key is answered without a look-up. A new key is valid everywhere
after this time."""
_INTERVAL = 0.1
"""Seconds between two answers to unknown keys of one address, after the first ones."""
_LONGEST_WAIT = 2.0
"""Seconds. A request that would wait longer is refused."""
_MAX_ENTRIES = 10_000
"""Most keys, and most networks, that are remembered. Above it all are forgotten."""


class KeyGuesses:
    """How fast unknown keys are answered: a rate, and so no `FairQueue` (models/load/).

    Each network of clients has a rate; an answer waits for its turn (the generic cell rate
    algorithm, which keeps one number for each network). Only what was found to be unknown comes
    here: a valid key waits for nobody, also if it shares its address with a client that guesses.
    """

    def __init__(self, burst: int) -> None:
        """`burst`: answers to one address that are not delayed."""
        self._burst = burst
        self._unknown: dict[bytes, float] = {}
        """until when each key is answered without a look-up"""
        self._paid_until: dict[str, float] = {}
        """for each network the time at which its answers would have been allowed one by one"""

    def is_unknown(self, hashed: bytes) -> bool:
        """Whether the key was found to be unknown within the last second."""
        return self._unknown.get(hashed, 0.0) > time.monotonic()

    def record_unknown(self, hashed: bytes) -> None:
        """No valid key has this hash."""
        if len(self._unknown) >= _MAX_ENTRIES:
            self._unknown.clear()
        self._unknown[hashed] = time.monotonic() + _REMEMBERED

    async def delay(self, address: str) -> None:
        """Waits until the address may have the answer to another unknown key. Raises
        TooManyUnknownKeys."""
        now = time.monotonic()
        network = client_network(address)
        paid_until = max(now, self._paid_until.get(network, now))
        wait = paid_until - now - self._burst * _INTERVAL
        if wait > _LONGEST_WAIT:
            raise TooManyUnknownKeys(wait)
        if len(self._paid_until) >= _MAX_ENTRIES:
            self._paid_until.clear()
        self._paid_until[network] = paid_until + _INTERVAL
        if wait > 0:
            await asyncio.sleep(wait)
