"""Cells in a web process: its own name, which new keys carry, and the requests of projects that
have moved."""

import asyncio

from features.cells.moved_queries import MOVED_KEYS
from features.cells.relay import CellRelay
from models.db.database import fetch, fetch_when_available, retry_while_unavailable
from models.db.queries.organization import SET_CELL
from web.state import AppState, Feature


class Cell(Feature):
    """Stores the setting `cell`, so that commands make keys of it without this setting. Knows the
    keys of projects that have moved."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._relay = CellRelay(state)
        self._changed = asyncio.Event()
        self._changed.set()
        state.lease.access_revision.watch(self._changed.set)

    def start(self) -> None:
        """Stores the name once; reads the keys after each change of a project or key."""
        self.state.spawn(retry_while_unavailable(self._store, "cell_retry"))
        self.state.side_tasks.start(self._watch(), "moved-projects")

    async def close(self) -> None:
        """Closes the connections to other cells."""
        await self._relay.close()

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            moved = await fetch_when_available(self.state.pool, MOVED_KEYS, {})
            self._relay.keys = {key.hash: key for key in moved}
            self.state.hooks.relay = self._relay if moved else None

    async def _store(self) -> None:
        async with self.state.pool.connection() as connection:
            await fetch(connection, SET_CELL, {"name": self.state.settings.cell})


FEATURE = Cell
