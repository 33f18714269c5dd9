"""Forwards a request to an upstream of its model, as all that a response does (docs/batches.md)."""

import asyncio
from functools import partial
from typing import Any

from models.wire.events import Item
from models.wire.forwarding import answer_item, requested_body
from models.wire.proxied_usage import TokenUsage, usage_in
from models.wire.token_counts import TokenCounts
from models.wire.urls import body_urls
from worker.metrics import UPSTREAM_TURNS
from worker.run.context import RunContext
from worker.run.failover import first_answer
from worker.run.handed_on_urls import require_handed_on
from worker.run.spans import forwarding_span
from worker.translation.token_usage import usage_json
from worker.translation.turn import TurnOutcome
from worker.upstream.upstreams import Candidate


async def run_forwarding(context: RunContext) -> TurnOutcome | None:
    """Makes the answer of the first upstream that answers the output. None: the process stops,
    release it. Raises RunError.

    Nothing is stored before the ending: if this process dies, the next attempt sends the request
    again.
    """
    if context.is_draining():
        return None
    attempt = context.attempt
    candidates = await context.candidates()
    request, urls = await asyncio.to_thread(_read, context.history[-1])
    # The line may have waited for days since the web process judged them.
    egress = await context.resources.egress_of(attempt.claim.row.project_id)
    await require_handed_on(urls, egress)
    answer = await first_answer(attempt, candidates, partial(_call, context, request))
    item = await asyncio.to_thread(answer_item, context.resources.new_id, answer)
    context.output.unstored_items = [item]
    usage = usage_in(answer)
    context.output.usage = None if usage is None else _to_json(usage)
    return TurnOutcome("completed")


def _read(item: Item) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The body of the request in its item, and the URLs in it with their places."""
    body = requested_body(item)
    return body, list(body_urls(body))


async def _call(context: RunContext, request: dict[str, Any], candidate: Candidate) -> Any:
    """The answer of this upstream."""
    async with candidate.acquire(interactive=False) as permit:
        body, path = {**request, "model": candidate.model}, context.attempt.stored.path
        upstream = candidate.upstream
        with forwarding_span(context.span, upstream.settings, candidate.model, path):
            answer = await upstream.plain.call(path, body)
        permit.record_success()
    UPSTREAM_TURNS.labels(candidate.name, "answered").inc()
    context.output.upstream = candidate.name
    return answer


def _to_json(usage: TokenUsage) -> dict[str, Any] | None:
    return usage_json(
        TokenCounts(
            usage.input_tokens,
            usage.output_tokens,
            cached=usage.cached_tokens,
            reasoning=usage.reasoning_tokens,
        )
    )
