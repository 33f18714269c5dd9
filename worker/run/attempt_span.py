"""The span of an attempt, and of the wait in the queue before the first one.

The trace is in the row, so each attempt continues it, whatever process runs it. The span of an
attempt whose process was killed is lost with that process; the spans below it that had ended are
not.
"""

from models.ids import response_id
from models.lifecycle import Status
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, INTERACTIVE
from models.tracing.spans import NO_SPAN, Span, SpanKind, Tracer
from models.tracing.traceparent import parse_traceparent, traceparent_of
from worker.run.end_state import EndState


def start_attempt_span(tracer: Tracer | None, claim: Claim) -> Span:
    """The span of a claimed response's run. The caller ends it by `end_attempt_span`."""
    if tracer is None:
        return NO_SPAN
    row = claim.row
    # Earlier releases have stored what the client sent, whatever it was.
    stored = None if parse_traceparent(row.traceparent) is None else row.traceparent
    traceparent = stored or traceparent_of(row.id)
    public_id = {"backburner.response.id": response_id(row.id)}
    if claim.is_first:
        queue = {"messaging.destination.name": BACKGROUND if row.background else INTERACTIVE}
        waiting = tracer.start(
            "queue", traceparent, public_id | queue, seconds_ago=max(0.0, row.seconds_queued)
        )
        waiting.end()
    attributes: dict[str, str | int] = {
        **public_id,
        "backburner.attempt": row.attempt,
        "backburner.crashes": row.crashes,
        "gen_ai.request.model": row.model,
    }
    return tracer.start("attempt", traceparent, attributes, SpanKind.CONSUMER)


def end_attempt_span(span: Span, outcome: str, end_state: EndState | None) -> None:
    """Ends the span. `outcome`: as in the metric `backburner_attempts_total`."""
    span.set({"backburner.outcome": outcome})
    if end_state is not None:
        span.set({"backburner.status": end_state.status.value})
        if end_state.status is Status.FAILED:
            span.fail(end_state.reason or "failed")
    span.end()
