"""Cells in a web process: its own name, which new keys carry."""

from models.db.database import fetch, retry_while_unavailable
from models.db.queries.organization import SET_CELL
from web.state import Feature


class CellName(Feature):
    """Stores the setting `cell`, so that commands make keys of it without this setting."""

    def start(self) -> None:
        """Stores it once."""
        self.state.spawn(retry_while_unavailable(self._store, "cell_retry"))

    async def _store(self) -> None:
        async with self.state.pool.connection() as connection:
            await fetch(connection, SET_CELL, {"name": self.state.settings.cell})


FEATURE = CellName
