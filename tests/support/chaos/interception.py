"""What a proxy does to single requests: it holds or loses their replies, or drops them."""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class HeldAnswer:
    """The reply to one request, held until the test releases or loses it."""

    pattern: bytes
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has replied: the request took effect, and the client does not know it."""
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _is_lost: bool = False

    def release(self) -> None:
        """Sends the reply to the client."""
        self._decided.set()

    def lose(self) -> None:
        """Closes the client's connection instead of sending the reply."""
        self._is_lost = True
        self._decided.set()

    async def wait_decision(self) -> bool:
        """Called when the reply came; returns whether the client gets it, when that is decided."""
        self.answered.set()
        await self._decided.wait()
        return not self._is_lost


@dataclass(slots=True)
class Interceptions:
    """The requests that a proxy treats in a special way; each entry is used once."""

    held: list[HeldAnswer] = field(default_factory=list)
    dropped_patterns: list[bytes] = field(default_factory=list)
    bytes_to_cut: int | None = None
    """After this many more bytes of clients, the reply that follows is lost."""
    counts: dict[bytes, int] = field(default_factory=dict)
    """How many requests contained a pattern, for each pattern that is to be counted."""

    def count(self, request: bytes) -> None:
        """Counts a request."""
        for pattern in self.counts:
            self.counts[pattern] += pattern in request

    def clear(self) -> None:
        """Removes all entries; replies that are held already stay held."""
        self.held.clear()
        self.dropped_patterns.clear()
        self.bytes_to_cut = None

    def drops(self, request: bytes) -> bool:
        """Returns whether this request must not reach the server."""
        pattern = next((entry for entry in self.dropped_patterns if entry in request), None)
        if pattern is not None:
            self.dropped_patterns.remove(pattern)
        return pattern is not None

    def held_answer(self, request: bytes) -> HeldAnswer | None:
        """Returns the entry that holds the reply to this request, if there is one."""
        held = next((entry for entry in self.held if entry.pattern in request), None)
        if held is not None:
            self.held.remove(held)
        return held

    def cuts_after(self, size: int) -> bool:
        """Counts `size` bytes of a client; returns whether the reply to them is lost."""
        if self.bytes_to_cut is None:
            return False
        self.bytes_to_cut -= size
        if self.bytes_to_cut > 0:
            return False
        self.bytes_to_cut = None
        return True


def lost_answer() -> HeldAnswer:
    """A reply that is lost as soon as it comes."""
    answer = HeldAnswer(b"")
    answer.lose()
    return answer
