"""Unknown API keys: those that were sent lately, and how often each network sends new ones."""

import asyncio
import time

from models.errors import TooManyUnknownKeys
from web.http.networks import client_network

_REMEMBERED = 1.0
"""Seconds for which an unknown key is answered without a look-up. A new key is valid everywhere
after this time."""
_INTERVAL = 0.1
"""Seconds between two look-ups of unknown keys for one address, after the first ones."""
_LONGEST_WAIT = 2.0
"""Seconds. A request that would wait longer is refused."""
_MAX_ENTRIES = 10_000
"""Most keys, and most networks, that are remembered. Above it all are forgotten."""


class KeyGuesses:
    """What the look-ups of keys that are not known to be valid may cost.

    Each network of clients has a rate; a request waits for its turn (the generic cell rate
    algorithm, which keeps one number for each network). Keys that were valid before are not
    delayed.
    """

    def __init__(self, burst: int) -> None:
        """`burst`: look-ups for one address that are not delayed."""
        self._burst = burst
        self._unknown: dict[bytes, float] = {}
        """until when each key is answered without a look-up"""
        self._paid_until: dict[str, float] = {}
        """for each network the time at which its look-ups would have been allowed one by one"""

    def is_unknown(self, hashed: bytes) -> bool:
        """Whether the key was found to be unknown within the last second."""
        return self._unknown.get(hashed, 0.0) > time.monotonic()

    def record_unknown(self, hashed: bytes) -> None:
        """No valid key has this hash."""
        if len(self._unknown) >= _MAX_ENTRIES:
            self._unknown.clear()
        self._unknown[hashed] = time.monotonic() + _REMEMBERED

    async def wait_for_turn(self, address: str) -> None:
        """Waits until the address may have another key looked up. Raises TooManyUnknownKeys."""
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

    def refund(self, address: str) -> None:
        """The key of the last look-up was valid."""
        network = client_network(address)
        if network in self._paid_until:
            self._paid_until[network] -= _INTERVAL
