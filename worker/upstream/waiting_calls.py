"""The calls that wait for a permit of an upstream: projects take turns (docs/adr/0014)."""

import asyncio
from uuid import UUID

from models.load.fair_queue import FairQueue

Place = asyncio.Future[None]
"""A call's place in a queue; it has a result once the call has a permit."""

_OVERTAKES = 3
"""Foreground calls in a row that get a permit before a background call that waits."""


class WaitingCalls:
    """Those of one upstream. Foreground calls go first, but while background calls wait, every
    fourth permit is for one of these."""

    def __init__(self, *, foreground: int, background: int) -> None:
        """The places of each kind that one project has."""
        self._foreground = _ProjectQueues(foreground)
        self._background = _ProjectQueues(background)
        self._overtakes = 0
        """Foreground calls that got a permit since a background call did, while some waited."""

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background)

    def goes_next(self, *, interactive: bool) -> bool:
        """Whether a call that comes now waits behind no other."""
        return not self._foreground and (interactive or not self._background)

    def is_waiting(self, project: UUID, *, interactive: bool) -> bool:
        """Whether the project has a call of this kind here."""
        return project in self._queues(interactive=interactive)

    def add(self, project: UUID, *, interactive: bool) -> Place | None:
        """A place for a call. None: all places of the project are taken."""
        return self._queues(interactive=interactive).add(project)

    def remove(self, project: UUID, place: Place, *, interactive: bool) -> None:
        """The call of this place waits no longer. `wake_next` may have removed it."""
        self._queues(interactive=interactive).remove(project, place)

    def wake_next(self) -> bool:
        """Gives a permit to the next call. False: none waits."""
        kinds = [self._foreground, self._background]
        if self._overtakes >= _OVERTAKES:
            kinds.reverse()
        for queues in kinds:
            if queues.wake_next():
                overtakes = queues is self._foreground and self._background
                self._overtakes = self._overtakes + 1 if overtakes else 0
                return True
        return False

    def _queues(self, *, interactive: bool) -> "_ProjectQueues":
        return self._foreground if interactive else self._background


class _ProjectQueues:
    """The waiting calls of one kind, of each project a few."""

    def __init__(self, places: int) -> None:
        """`places`: of one project."""
        self._most = places
        self._queue: FairQueue[UUID, Place] = FairQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __contains__(self, project: UUID) -> bool:
        return project in self._queue

    def add(self, project: UUID) -> Place | None:
        if len(self._queue.of(project)) >= self._most:
            return None
        place: Place = asyncio.get_running_loop().create_future()
        self._queue.add(project, place)
        return place

    def remove(self, project: UUID, place: Place) -> None:
        self._queue.remove(project, place)

    def wake_next(self) -> bool:
        while (place := self._queue.take_next()) is not None:
            if not place.done():  # else cancelled in this moment
                place.set_result(None)
                return True
        return False
