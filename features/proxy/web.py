"""Forwarded endpoints in a web process."""

from features.proxy.proxy import UpstreamProxy
from web.state import AppState, Feature


class Proxy(Feature):
    """The connections to the upstreams of forwarded requests."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.upstreams = UpstreamProxy(state.settings, state.grace_expired)

    async def close(self) -> None:
        """Closes the connections."""
        await self.upstreams.close()


FEATURE = Proxy
