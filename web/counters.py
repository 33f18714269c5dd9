"""What a web process counts while it serves; web/routes/metrics.py shows it."""

from prometheus_client import Counter, Histogram

from models.metrics import SECONDS, new_registry

REGISTRY = new_registry()

ANSWERS = Counter(
    "backburner_http_answers", "HTTP answers begun, by status.", ["status"], registry=REGISTRY
)
ACCEPTED = Counter(
    "backburner_responses_accepted",
    "Responses created, by how the client waits.",
    ["mode"],
    registry=REGISTRY,
)
ENDED = Counter(
    "backburner_responses_ended",
    "Responses this process has ended, by status: cancelled while they were queued, or answered from the cache.",
    ["status"],
    registry=REGISTRY,
)
CACHE = Counter(
    "backburner_cache_lookups",
    "Requests that asked for a remembered answer, by what came of it.",
    ["result"],
    registry=REGISTRY,
)
CANCEL = Histogram(
    "backburner_cancel_seconds",
    "From the record of a cancel to the response's ending; one that takes longer than BACKBURNER_WEB__CANCEL_WAIT counts as that.",
    buckets=SECONDS,
    registry=REGISTRY,
)

ACCEPTED.labels("background")
ACCEPTED.labels("foreground")
ENDED.labels("cancelled")
ENDED.labels("completed")
CACHE.labels("hit")
CACHE.labels("miss")
