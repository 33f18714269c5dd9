"""The order in which several keys, such as projects, are served."""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
EntryT = TypeVar("EntryT", bound=Hashable)


class RoundRobin(Generic[KeyT, EntryT]):
    """Entries, first come, first served for each key. A key whose entry was taken is the last one
    then: however many entries it has, each other key waits for one of them."""

    def __init__(self) -> None:
        self._queues: OrderedDict[KeyT, OrderedDict[EntryT, None]] = OrderedDict()
        """The key that is next is first. None is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __contains__(self, key: object) -> bool:
        return key in self._queues

    def __iter__(self) -> Iterator[KeyT]:
        """The keys that have entries now, the next one first."""
        return iter(list(self._queues))

    def of(self, key: KeyT) -> Collection[EntryT]:
        """The entries of a key, the one that came first first."""
        return self._queues.get(key, {}).keys()

    def add(self, key: KeyT, entry: EntryT) -> None:
        """Puts an entry behind the others of its key."""
        self._queues.setdefault(key, OrderedDict())[entry] = None

    def remove(self, key: KeyT, entry: EntryT) -> None:
        """Removes an entry that is not served, if it is here."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.pop(entry, None)
            if not queue:
                del self._queues[key]

    def take(self, key: KeyT, entry: EntryT) -> None:
        """Removes an entry that is served: the other keys are next."""
        self.remove(key, entry)
        if key in self._queues:
            self._queues.move_to_end(key)

    def take_next(self) -> EntryT | None:
        """Removes the next entry and returns it; None if there is none."""
        if not self._queues:
            return None
        key, queue = next(iter(self._queues.items()))
        entry = next(iter(queue))
        self.take(key, entry)
        return entry
