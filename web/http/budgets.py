"""The budgets of one web process (docs/limits.md)."""

from models.config.web import WebSettings
from models.load.budget import SharedBudget


class Budgets:
    """What the requests of one process share."""

    def __init__(self, web: WebSettings) -> None:
        wait = web.bodies_wait.total_seconds()
        self.bodies = SharedBudget("large requests", web.bodies, web.bodies_per_project, wait)
        """Bytes of the request bodies that are read and checked, and of what is made of them."""
        self.spools = SharedBudget("uploads", web.spools, web.spools_per_project, wait)
        """Bytes of uploads in temporary files."""
        self.sockets = SharedBudget("open WebSockets", web.sockets, web.sockets_per_project)
        self.streams = SharedBudget(
            "open streams and waiting requests", web.streams, web.streams_per_project
        )
        """Streams, and requests that wait for the end of a response."""
        self.uploads = SharedBudget("uploads and downloads", web.uploads, web.uploads_per_project)
        """Files that are being received or sent."""
        self.webhook_tests = SharedBudget("webhook tests", 64, 16)
        """Requests that wait for the first try of an event."""
