"""How much of this worker each project uses: what decides whose turn it is (ADR 0041)."""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from models.ownership.line import ChosenClaim, ProjectShare


class ProjectShares:
    """The running responses of each project, and how much each one was served while others waited.

    The second is start-time fair queueing: a project's next response begins at a virtual time, and
    each response that is claimed moves the project on by 1 / weight. The clock stands at the latest
    beginning. A project that comes back later gets nothing for the time in which it wanted nothing.
    """

    def __init__(self) -> None:
        self._running: Counter[UUID] = Counter()
        self._next: dict[UUID, float] = {}
        """project -> the virtual time at which its next response begins, if that is to come"""
        self._now = 0.0

    def begin(self, project: UUID) -> None:
        """A response of the project runs here now."""
        self._running[project] += 1

    def end(self, project: UUID) -> None:
        """It runs here no more."""
        self._running[project] -= 1
        if not self._running[project]:
            del self._running[project]

    def serve(self, chosen: Iterable[ChosenClaim]) -> None:
        """These responses were claimed while others waited."""
        for each in chosen:
            project = each.claim.row.project_id
            start = max(self._now, self._next.get(project, 0.0))
            self._now = start
            self._next[project] = start + 1 / each.weight
        self._next = {project: at for project, at in self._next.items() if at > self._now}

    def known(self) -> dict[UUID, ProjectShare]:
        """Each project that uses this worker, or has lately."""
        return {
            project: ProjectShare(
                self._running[project], max(0.0, self._next.get(project, 0.0) - self._now)
            )
            for project in {*self._running, *self._next}
        }
