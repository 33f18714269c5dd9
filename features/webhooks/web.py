"""Webhooks in a web process: their endpoints, and gauges of what waits."""

from prometheus_client.core import GaugeMetricFamily

from features.webhooks.endpoints import WebhookEndpoints
from features.webhooks.queries import WEBHOOK_STATE, WebhookState
from models.load.budget import SharedBudget
from web.counters import ScrapedRows
from web.state import AppState, Feature

_GAUGE_AGE = 5.0
"""Seconds for which the gauges count."""


def _families(rows: list[WebhookState]) -> list[GaugeMetricFamily]:
    state = rows[0] if rows else WebhookState(0, 0, 0, 0, 0.0)
    endpoints = GaugeMetricFamily(
        "backburner_webhook_endpoints", "Endpoints of webhooks by state.", labels=["state"]
    )
    for name, count in (
        ("enabled", state.enabled),
        ("failing", state.failing),
        ("disabled", state.disabled),
    ):
        endpoints.add_metric([name], count)
    waiting = GaugeMetricFamily(
        "backburner_webhooks_waiting",
        "Events that are to be delivered, by endpoint that gets them; not to disabled ones.",
        state.waiting,
    )
    oldest = GaugeMetricFamily(
        "backburner_webhooks_oldest_seconds",
        "Age in seconds of the oldest of these events.",
        max(0.0, state.oldest),
    )
    return [endpoints, waiting, oldest]


WEBHOOK_GAUGES = ScrapedRows(WEBHOOK_STATE, _GAUGE_AGE, _families)


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
