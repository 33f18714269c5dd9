"""Quotas in a web process."""

from features.quotas.quotas import CountedQuotas
from web.state import AppState, Feature


class QuotaCounting(Feature):
    """Limits the requests of projects that have quotas."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._quotas = CountedQuotas.open(state.settings, state.pool, state.lease)
        state.hooks.quotas = self._quotas

    def start(self) -> None:
        """Reports open connections to the other processes."""
        self.state.side_tasks.start(self._quotas.connections.run(), "open-connections")

    async def close(self) -> None:
        """Closes the connections to Redis."""
        await self._quotas.close()


FEATURE = QuotaCounting
