"""A queue in which several keys, such as projects, take turns."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
EntryT = TypeVar("EntryT")


class FairQueue(Generic[KeyT, EntryT]):
    """Entries, first come, first served for each key. A key whose entry was taken is the last
    one then: however many entries it has, each other key waits for one of them."""

    def __init__(self) -> None:
        self._queues: dict[KeyT, deque[EntryT]] = {}
        """The key whose turn it is first. None is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __contains__(self, key: object) -> bool:
        return key in self._queues

    def __iter__(self) -> Iterator[KeyT]:
        """The keys that have entries now, in the order of their turns."""
        return iter(list(self._queues))

    def of(self, key: KeyT) -> Sequence[EntryT]:
        """The entries of a key, the one that came first first."""
        return self._queues.get(key, ())

    def add(self, key: KeyT, entry: EntryT) -> None:
        """Puts an entry behind the others of its key."""
        self._queues.setdefault(key, deque()).append(entry)

    def remove(self, key: KeyT, entry: EntryT) -> None:
        """Removes an entry without a turn, if it is here."""
        queue = self._queues.get(key)
        if queue is not None and entry in queue:
            queue.remove(entry)
            if not queue:
                del self._queues[key]

    def take(self, key: KeyT) -> EntryT:
        """Takes the first entry of a key. It is the turn of the other keys then. Raises KeyError
        if there is none."""
        queue = self._queues.pop(key)
        entry = queue.popleft()
        if queue:
            self._queues[key] = queue
        return entry

    def pass_turn(self, key: KeyT) -> None:
        """It is the turn of the other keys now."""
        if key in self._queues:
            self._queues[key] = self._queues.pop(key)

    def take_next(self) -> EntryT | None:
        """Takes the entry whose turn it is; None if there is none."""
        return self.take(next(iter(self._queues))) if self._queues else None
