"""Batches in a web process."""

from features.batches.batch_store import BatchStore
from features.batches.expander import Expander
from features.batches.forwarded import PrepareForwarded
from web.state import AppState, Feature


class Batches(Feature):
    """The batches of all projects, and the expansion of their input, which is checked as a POST
    is."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        settings = state.settings
        self.store = BatchStore(settings.batches, settings.quotas, state.pool)

    def start(self) -> None:
        """Begins to expand batches, if this server stores files."""
        state = self.state
        if state.storage is None:
            return
        expander = Expander(
            state.settings,
            state.pool,
            state.storage,
            state.create_response,
            PrepareForwarded(state),
            state.quotas,
            state.job_queue,
        )
        state.side_tasks.start(expander.run(state.due_poll), "batches")


FEATURE = Batches
