"""Schedules in a web process."""

from features.schedules.runner import ScheduleRunner
from features.schedules.schedule_store import ScheduleStore
from web.state import AppState, Feature


class Schedules(Feature):
    """The schedules of all projects, and the work on their slots: their requests are checked as a
    POST is."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._runner = ScheduleRunner(state)
        self.store = ScheduleStore(state, self._runner)

    def start(self) -> None:
        """Begins to work on schedules that are due."""
        self.state.side_tasks.start(self._runner.run(), "schedules")

    def wake(self) -> None:
        """A schedule may be due: it was changed without the store."""
        self._runner.wake()


FEATURE = Schedules
