"""Files in a web process."""

from features.files.gauges import FILE_GAUGES
from features.files.storage_state import StorageState
from features.files.store import FileStore
from features.files.uploads import Uploads
from web.state import AppState, Feature


class Files(Feature):
    """The files of all projects, and uploads of them in parts."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        storage = state.storage
        self.store = FileStore(state.settings, state.pool, storage)
        self.uploads = Uploads(state.settings.files, state.pool, self.store)
        self._storage_state = None if storage is None else StorageState(storage)

    def start(self) -> None:
        """Logs a storage that cannot be used."""
        if self._storage_state is not None:
            self.state.spawn(self._storage_state.log_problem())

    async def refresh_gauges(self) -> None:
        """Reads the figures if they are too old."""
        await FILE_GAUGES.refresh(self.state.pool)

    async def readiness(self) -> dict[str, str | None]:
        """The storage: `ok`, a sentence for operators, or None if there is none."""
        state = self._storage_state
        return {"files": None if state is None else await state.show()}


FEATURE = Files
