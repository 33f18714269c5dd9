"""What a web process counts while it serves; web/routes/metrics.py shows it."""

from prometheus_client import Counter, Histogram

from models.metrics import SECOND_BUCKETS, new_registry

REGISTRY = new_registry()

HTTP_RESPONSES = Counter(
    "backburner_http_answers", "HTTP answers begun, by status.", ["status"], registry=REGISTRY
)
RESPONSES_ACCEPTED = Counter(
    "backburner_responses_accepted",
    "Responses created, by how the client waits.",
    ["mode"],
    registry=REGISTRY,
)
RESPONSES_ENDED = Counter(
    "backburner_responses_ended",
    "Responses this process has ended, by status: cancelled while they were queued, or answered from the cache.",
    ["status"],
    registry=REGISTRY,
)
CACHE_LOOKUPS = Counter(
    "backburner_cache_lookups",
    "Requests that asked for a remembered answer, by what came of it.",
    ["result"],
    registry=REGISTRY,
)
CANCEL_SECONDS = Histogram(
    "backburner_cancel_seconds",
    "From the record of a cancel to the response's ending; one that takes longer than BACKBURNER_WEB__CANCEL_WAIT counts as that.",
    buckets=SECOND_BUCKETS,
    registry=REGISTRY,
)

RESPONSES_ACCEPTED.labels("background")
RESPONSES_ACCEPTED.labels("foreground")
RESPONSES_ENDED.labels("cancelled")
RESPONSES_ENDED.labels("completed")
CACHE_LOOKUPS.labels("hit")
CACHE_LOOKUPS.labels("miss")
