"""Forwarded endpoints in a web process."""

from features.proxy.proxied_usage import ProxiedUsage
from features.proxy.proxy import UpstreamProxy
from models.load.budget import SharedBudget
from web.state import AppState, Feature


class Proxy(Feature):
    """The connections to the upstreams of forwarded requests, and what these have used."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.upstreams = UpstreamProxy(state.settings, state.grace_expired)
        self.usage = ProxiedUsage(state.pool)
        web = state.settings.web
        self.spools = SharedBudget(
            "uploads", web.spools, web.spools_per_project, web.bodies_wait.total_seconds()
        )
        """Bytes of uploads in temporary files."""

    def start(self) -> None:
        """Begins to store what requests have used."""
        self.state.side_tasks.start(self.usage.run(), "proxied-usage")

    async def close(self) -> None:
        """Stores what was used last, and closes the connections."""
        await self.usage.store()
        await self.upstreams.close()


FEATURE = Proxy
