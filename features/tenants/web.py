"""Projects, their keys and service accounts in a web process."""

from features.tenants.organization import Organization
from web.state import AppState, Feature


class Tenants(Feature):
    """Who may use this server."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.organization = Organization.open(state.pool, state.routes.server.upstreams)


FEATURE = Tenants
