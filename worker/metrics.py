"""The metrics of a worker process.

They are observed per batch, claim, turn and ending, never per event, which would cost too much.
"""

import re
from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from models.db.queries.claim import ClaimedRow
from models.lifecycle import TERMINAL
from models.metrics import MILLISECOND_BUCKETS, SECOND_BUCKETS, PoolCollector, new_registry
from models.ownership.claims import ReleaseReason
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, INTERACTIVE
from models.windows import WINDOW_OF_LANE, CompletionWindow
from models.wire.response import TEXT_FORMAT_UNMET, TOOL_CHOICE_UNMET

REGISTRY = new_registry()
POOL = PoolCollector()
REGISTRY.register(POOL)
counter = partial(Counter, registry=REGISTRY)
gauge = partial(Gauge, registry=REGISTRY)
histogram = partial(Histogram, registry=REGISTRY)

RUNNING = gauge("backburner_running", "Responses this worker runs now.")
SLOTS = gauge("backburner_slots", "Responses this worker can run at a time.")
MEMORY_BUDGET = gauge(
    "backburner_memory_budget_bytes", "Memory that this worker may use; 0: no budget."
)
MEMORY_FULL = gauge(
    "backburner_memory_full", "1 while this worker claims no response because its memory is short."
)
MEMORY_HAND_OVERS = counter(
    "backburner_memory_hand_overs",
    "Responses that this worker gave up because its memory was short.",
)
CONFINEMENT = gauge(
    "backburner_confinement",
    "1 if the system confines the processes that read files by this, 0 if it lacks it.",
    ["protection"],
)
LEASE_AGE = gauge(
    "backburner_lease_age_seconds", "Seconds since this process last renewed its lease."
)
QUEUE_WAIT = histogram(
    "backburner_queue_wait_seconds",
    "From the creation of a response to its first claim.",
    ["queue"],
    buckets=SECOND_BUCKETS,
)
FIRST_EVENT_SECONDS = histogram(
    "backburner_first_event_seconds",
    "From the creation of a response to the first event of its output.",
    buckets=SECOND_BUCKETS,
)
ATTEMPTS = counter(
    "backburner_attempts",
    "Attempts by outcome. An attempt whose process crashed is counted when the response is "
    "claimed again.",
    ["outcome"],
)
RESPONSES_ENDED = counter(
    "backburner_responses_ended", "Responses this worker has ended, by status.", ["status"]
)
WINDOWS_MISSED = counter(
    "backburner_windows_missed",
    "Responses this worker has ended after the end of their completion window, by window.",
    ["window"],
)
UPSTREAM_ERRORS = counter(
    "backburner_upstream_errors",
    "Responses that failed because of an upstream, by class.",
    ["class"],
)
UPSTREAM_STREAMS = gauge(
    "backburner_upstream_running",
    "Responses that this worker runs at an upstream now.",
    ["upstream"],
)
CIRCUITS_OPEN = gauge(
    "backburner_upstream_circuits_open",
    "Circuits that are open: the upstream's own, those of models, and those of projects.",
    ["upstream"],
)
UPSTREAM_TURNS = counter(
    "backburner_upstream_turns",
    "Upstream calls by outcome: answered, failed, or busy "
    "(not sent: limit reached or circuit open).",
    ["upstream", "outcome"],
)
FAILURES = counter("backburner_failures", "Responses that failed for another reason.", ["reason"])
DEATHS = counter("backburner_deaths", "Processes that this one has declared dead.")
RECOVERY = histogram(
    "backburner_recovery_seconds",
    "From the expiry of a crashed worker's lease to the next claim of its response.",
    buckets=SECOND_BUCKETS,
)
JOURNAL_SECONDS = histogram(
    "backburner_journal_seconds",
    "One batch of events into the journal.",
    buckets=MILLISECOND_BUCKETS,
)
FLUSH_SECONDS = histogram(
    "backburner_flush_seconds",
    "One flush of tails into the event log.",
    buckets=MILLISECOND_BUCKETS,
)
ENQUEUES_DROPPED = counter(
    "backburner_enqueues_dropped",
    "Wake-ups that were not sent because Redis was unavailable. A sweep finds their responses.",
)
TOOL_SECONDS = histogram(
    "backburner_tool_call_seconds",
    "One call of a server tool, by type of the call's item and outcome: answered, failed.",
    ["tool", "outcome"],
    buckets=SECOND_BUCKETS,
)
UPSTREAM_RETRIES = counter(
    "backburner_upstream_retries",
    "Requests that were sent again to the same upstream because the one before failed.",
    ["upstream"],
)
WEBHOOKS = counter(
    "backburner_webhook_tries",
    "Tries to deliver an event to an endpoint, by outcome: delivered or failed.",
    ["outcome"],
)
INGESTED = counter(
    "backburner_ingested_files",
    "Files that this worker has ingested into vector stores, by status: completed or failed.",
    ["status"],
)
WEBHOOKS_GIVEN_UP = counter(
    "backburner_webhooks_given_up", "Events that an endpoint has not accepted within three days."
)
WEBHOOKS_DISABLED = counter(
    "backburner_webhook_endpoints_disabled",
    "Endpoints that this worker has disabled: they answered 410, or failed for days.",
)
BATCHES = counter("backburner_batches_ended", "Batches that have ended, by status.", ["status"])
UPSTREAM_FAILOVERS = counter(
    "backburner_upstream_failovers",
    "Calls for which the next upstream of the route was tried because this one failed.",
    ["upstream"],
)
DEFERRALS = counter(
    "backburner_deferrals",
    "Attempts that put their response off, by the upstream that it waits for and the class of the "
    "failure.",
    ["upstream", "class"],
)
UNKNOWN_CONTENT_TURNS = counter(
    "backburner_unknown_content",
    "Answers of an upstream with content in fields that are not known; the log names them.",
    ["upstream"],
)
TURN_REPEATS = counter(
    "backburner_turn_repeats",
    "Turns of background responses that are repeated because the upstream broke off its answer, by "
    "this upstream and the class of the failure.",
    ["upstream", "class"],
)
UNMET = counter(
    "backburner_unmet_requests",
    "Completed responses without what the request demanded, by upstream and demand: a call "
    "(`tool_choice_unmet`), or JSON (`text_format_unmet`).",
    ["upstream", "demand"],
)
EVENTS = counter("backburner_events", "Events written to the logs of responses.")

_STATUS_CLASSES = {"429": "rate_limited", "401": "credential", "403": "credential"}
_BY_FIRST_DIGIT = {"3": "redirect", "4": "request", "5": "server"}
_UPSTREAM_REASONS = {
    "upstream_error": "reported",
    "upstream_refused": "request",
    "repeated_failure": "server",
    "upstream_unreachable": "unreachable",
    "upstream_reset": "reset",
    "upstream_ended_early": "ended_early",
    "upstream_garbage": "garbage",
    "upstream_empty": "empty",
    "upstream_finish_reason": "finish_reason",
    "upstream_down": "down",
    "upstream_full": "full",
    "model_not_found": "model_not_found",
    "tool_choice_violated": "tool_choice_violated",
    "first_token": "first_token",
    "token_gap": "token_gap",
    "turn_limit": "turn_limit",
    "output_limit": "output_limit",
}
_OWN_REASONS = (
    "deadline",
    "queue_wait",
    "too_many_deaths",
    "failed_by_operator",
    "internal_error",
    "statement_refused",
    "memory_limit",
    "file_unavailable",
    "storage_unavailable",
    "history_deleted",
    "secrets_unreadable",
    "other",
)
"""Reasons that are labels; any further reason is counted as `other`."""

_TOOLS = (
    *("code_interpreter_call", "file_search_call", "image_generation_call", "mcp_call"),
    *("mcp_list_tools", "shell_call_output", "tool_search_call", "web_search_call"),
)
"""Types of items that are labels; the calls of any further type are `other`."""

for _tool in (*_TOOLS, "other"):
    for _outcome in ("answered", "failed"):
        TOOL_SECONDS.labels(_tool, _outcome)
for _outcome in ("delivered", "failed"):
    WEBHOOKS.labels(_outcome)
for _outcome in ("completed", "failed"):
    INGESTED.labels(_outcome)
for _queue in (INTERACTIVE, BACKGROUND):
    QUEUE_WAIT.labels(_queue)
for _outcome in ("ended", "lost", "died", *ReleaseReason):
    ATTEMPTS.labels(str(_outcome))
for _status in sorted(TERMINAL):
    RESPONSES_ENDED.labels(_status.value)
for _window in CompletionWindow:
    WINDOWS_MISSED.labels(_window.value)
for _class in sorted(
    {*_STATUS_CLASSES.values(), *_BY_FIRST_DIGIT.values(), *_UPSTREAM_REASONS.values(), "other"}
):
    UPSTREAM_ERRORS.labels(_class)
for _reason in _OWN_REASONS:
    FAILURES.labels(_reason)


def count_missed_window(row: ClaimedRow, completed_at: int) -> None:
    """Counts a response that has ended, if that was too late. `completed_at`: seconds since the
    epoch, by the clock of the database."""
    if row.window_ends_at is not None and completed_at > row.window_ends_at:
        WINDOWS_MISSED.labels(WINDOW_OF_LANE[row.lane]).inc()


def count_claim(claim: Claim) -> None:
    """Counts a claim: the wait of a first one, the recovery time of one after a crash."""
    if claim.is_first:
        QUEUE_WAIT.labels(BACKGROUND if claim.row.background else INTERACTIVE).observe(
            claim.row.seconds_queued
        )
    if claim.seconds_lost is not None:
        ATTEMPTS.labels("died").inc()
        RECOVERY.observe(max(0.0, claim.seconds_lost))


def observe_tool_call(item_type: str, seconds: float, *, failed: bool) -> None:
    """Observes a call of a server tool. `item_type`: of the item that shows the call."""
    tool = item_type if item_type in _TOOLS else "other"
    TOOL_SECONDS.labels(tool, "failed" if failed else "answered").observe(seconds)


def count_deferral(upstream: str, reason: str) -> None:
    """Counts an attempt that waits for an upstream. `reason`: of the upstream's failure."""
    DEFERRALS.labels(upstream, error_class(reason) or "other").inc()


def count_turn_repeat(upstream: str, reason: str) -> None:
    """Counts a turn that is repeated. `reason`: of the failure of the upstream that broke it
    off."""
    TURN_REPEATS.labels(upstream, error_class(reason) or "other").inc()


def add_upstream(name: str) -> None:
    """Lets the series of an upstream begin with 0, so that the first increase is seen."""
    UPSTREAM_FAILOVERS.labels(name)
    UNKNOWN_CONTENT_TURNS.labels(name)
    for outcome in ("answered", "failed", "busy"):
        UPSTREAM_TURNS.labels(name, outcome)
    for failure in ("unreachable", "server", "rate_limited", "down", "full"):
        DEFERRALS.labels(name, failure)
    for failure in ("reset", "ended_early", "reported"):
        TURN_REPEATS.labels(name, failure)
    for demand in (TOOL_CHOICE_UNMET, TEXT_FORMAT_UNMET):
        UNMET.labels(name, demand)


def count_failure(reason: str | None) -> None:
    """Counts a failed response. `reason`: the column `responses.reason`."""
    known = error_class(reason or "")
    if known is not None:
        UPSTREAM_ERRORS.labels(known).inc()
    else:
        FAILURES.labels(reason if reason in _OWN_REASONS else "other").inc()


def error_class(reason: str) -> str | None:
    """The class of an upstream's failure, one of a fixed set; None for any other failure."""
    status = re.fullmatch(r"upstream_(\d{3})", reason)
    if status:
        return _STATUS_CLASSES.get(status[1]) or _BY_FIRST_DIGIT.get(status[1][0], "other")
    return _UPSTREAM_REASONS.get(reason)
