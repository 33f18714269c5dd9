"""Python's garbage collector in a process whose streams and requests all wait for it.

It is needed for objects that refer to each other in a circle. Requests and runs leave hardly any,
and large bodies make many objects that are none (docs/architecture.md).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OLDER = 10
"""Collections of a generation before the next older one (gc thresholds 1 and 2)."""
_ENOUGH = 50_000
"""New objects that are worth a look."""


def tune_garbage_collector(new_objects: int) -> None:
    """Called when a process has loaded everything: that is never looked at again. Of other objects
    the new ones are looked at when so many are left. A process that starts has no collections
    until here (`worker/__main__.py`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(new_objects, _OLDER, _OLDER)
    gc.enable()


def collect_new_objects() -> None:
    """Looks at the objects that are new, if they are many; now and then also at older ones. Called
    at a time when there are no large bodies."""
    new, older, oldest = gc.get_count()
    if new >= _ENOUGH:
        gc.collect(2 if oldest >= _OLDER else 1 if older >= _OLDER else 0)


@contextmanager
def without_collections() -> Iterator[None]:
    """No collection happens in this context, which makes many objects without a circle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Another thread may be in such a context. The one that came first ends it for both.
        if was_enabled:
            gc.enable()
