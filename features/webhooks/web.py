"""Webhooks in a web process."""

from features.webhooks.endpoints import WebhookEndpoints
from features.webhooks.gauges import WEBHOOK_GAUGES
from models.load.budget import SharedBudget
from web.state import AppState, Feature


class Webhooks(Feature):
    """The endpoints of all projects."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.endpoints = WebhookEndpoints(
            state.pool, state.sealer, state.egress, state.settings.webhooks
        )
        self.tests = SharedBudget("webhook tests", 64, 16)
        """Requests that wait for the first try of an event."""

    async def refresh_gauges(self) -> None:
        """Reads the figures if they are too old."""
        await WEBHOOK_GAUGES.refresh(self.state.pool)


FEATURE = Webhooks
