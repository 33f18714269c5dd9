"""The counters of a web process, shown at `/metrics`."""

from prometheus_client import Counter, Histogram

from models.metrics import SECOND_BUCKETS, new_registry

REGISTRY = new_registry()

HTTP_RESPONSES = Counter(
    "backburner_http_answers", "HTTP responses started, by status.", ["status"], registry=REGISTRY
)
RESPONSES_ACCEPTED = Counter(
    "backburner_responses_accepted",
    "Responses created, by mode (background, foreground).",
    ["mode"],
    registry=REGISTRY,
)
RESPONSES_ENDED = Counter(
    "backburner_responses_ended",
    "Responses ended by this process, by status: cancelled in the queue, or completed from the "
    "cache.",
    ["status"],
    registry=REGISTRY,
)
CACHE_LOOKUPS = Counter(
    "backburner_cache_lookups",
    "Cache lookups, by result.",
    ["result"],
    registry=REGISTRY,
)
ENQUEUES_DROPPED = Counter(
    "backburner_enqueues_dropped",
    "Wake-ups that were not sent because Redis was unavailable. A sweep finds their responses.",
    registry=REGISTRY,
)
CANCEL_SECONDS = Histogram(
    "backburner_cancel_seconds",
    "Seconds from a cancel request to the end of the response, at most "
    "BACKBURNER_WEB__CANCEL_WAIT.",
    buckets=SECOND_BUCKETS,
    registry=REGISTRY,
)

RESPONSES_ACCEPTED.labels("background")
RESPONSES_ACCEPTED.labels("foreground")
RESPONSES_ENDED.labels("cancelled")
RESPONSES_ENDED.labels("completed")
CACHE_LOOKUPS.labels("hit")
CACHE_LOOKUPS.labels("miss")
