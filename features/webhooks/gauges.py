"""The state of webhooks, read at a scrape of `/metrics`."""

from prometheus_client.core import GaugeMetricFamily

from features.webhooks.queries import WEBHOOK_STATE, WebhookState
from web.counters import ScrapedRows

_INTERVAL = 5.0


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


WEBHOOK_GAUGES = ScrapedRows(WEBHOOK_STATE, _INTERVAL, _families)
