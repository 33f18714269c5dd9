"""Clients without a valid API key: how many connections each network of them has, and how often it
sends unknown keys (docs/limits.md, "Before the API key is known")."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network

from models.config.web import WebSettings
from models.errors import ApiError, TooManyUnknownKeys
from models.load.budget import SharedBudget
from models.load.pacing import Pacer

_REMEMBERED = 1.0
"""Seconds for which an unknown key is answered without a look-up. A new key is valid everywhere
after this time."""
_INTERVAL = 0.1
"""Seconds between two answers to unknown keys of one address, after the first ones."""
_LONGEST_WAIT = 2.0
"""Seconds. A request that would wait longer is refused."""
_MAX_ENTRIES = 10_000
"""Most keys, and most networks, that are remembered. Above it all are forgotten."""
_SUBNET = 64
"""Bits of the network of an IPv6 client. It has all addresses in it."""


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


def client_network(address: str) -> str:
    """What an address counts as: an IPv4 address as itself, an IPv6 address as its /64 network. Any
    other text, such as the name of a socket, is itself."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed), _SUBNET), strict=False))


class Connections:
    """The HTTP connections of a process: how many, how many of each network have not yet sent a
    valid API key, and how many of each project have."""

    def __init__(self, settings: WebSettings, on_refused: Callable[[ApiError, str], None]) -> None:
        """`on_refused` is called with the error and the request id of each request that does not
        reach the application."""
        self.settings = settings
        self.on_refused = on_refused
        self.of_projects = SharedBudget(
            "open connections", settings.connections, settings.connections_per_project
        )
        self.pacer = Pacer(1)
        """Connections go on with what they have received one by one, networks round robin."""
        self._open = 0
        self._unknown: Counter[str] = Counter()

    def admit(self, network: str) -> bool:
        """Counts a new connection. False, and nothing is counted, if there are too many."""
        limit = self.settings.connections_per_address
        if self._open >= self.settings.connections or 0 < limit <= self._unknown[network]:
            return False
        self._open += 1
        self._unknown[network] += 1
        return True

    def trust(self, network: str) -> None:
        """An admitted connection of this network has sent a valid API key, or is closed."""
        self._unknown[network] -= 1
        if self._unknown[network] <= 0:
            del self._unknown[network]

    def release(self) -> None:
        """An admitted connection is closed, or became a WebSocket."""
        self._open -= 1
