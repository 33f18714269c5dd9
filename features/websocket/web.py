"""WebSockets in a web process."""

from prometheus_client import Gauge

from features.websocket.protocol import WebSocketProtocol
from models.load.budget import SharedBudget
from web.counters import REGISTRY
from web.state import AppState, Feature

SOCKETS = Gauge("backburner_sockets", "Open WebSockets of this process.", registry=REGISTRY)


class WebSockets(Feature):
    """The class with which uvicorn serves them, and how many may be open."""

    socket_protocol = WebSocketProtocol

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        web = state.settings.web
        self.open = SharedBudget("open WebSockets", web.sockets, web.sockets_per_project)

    def start(self) -> None:
        """Shows their number."""
        SOCKETS.set_function(lambda: self.open.used)


FEATURE = WebSockets
