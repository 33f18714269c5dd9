"""Responses that do one thing, without a tool loop: a compaction, a count of tokens
(docs/state.md), or a request that is forwarded to an upstream of its model (docs/batches.md). A
compaction is made before a turn of the tool loop too."""

import asyncio
from functools import partial
from typing import Any

from models.wire.events import Item
from models.wire.purpose import answer_item, requested_body
from models.wire.response import output_text
from models.wire.token_counts import COUNTED_BY, TokenCounts, TokenUsage, usage_in, usage_json
from models.wire.urls import body_urls
from worker.metrics import UPSTREAM_TURNS
from worker.run.attachments import require_handed_on
from worker.run.compaction import ModelReply
from worker.run.context import RunContext
from worker.run.failover import first_answer
from worker.run.model_call import ModelCaller, ModelInput
from worker.run.spans import forwarding_span
from worker.translation.history.compaction import CompactionTurn
from worker.translation.turn import TurnOutcome
from worker.upstream.upstreams import Candidate


async def run_count(context: RunContext) -> TurnOutcome:
    """Puts the count of the input tokens into the usage of the response. Raises RunError."""
    count = await ModelCaller(context).count(context.full_history())
    usage = usage_json(TokenCounts(input=count.tokens, output=0)) or {}
    context.output.usage = {**usage, COUNTED_BY: count.source}
    return TurnOutcome("completed")


async def run_compaction(context: RunContext) -> TurnOutcome | None:
    """Runs a response whose purpose is a compaction. None: the process stops, release it."""
    if not context.output.entries:  # else an earlier attempt has stored the compaction
        if context.is_draining():
            return None
        await compact(context, ModelCaller(context))
    return TurnOutcome("completed")


async def compact(context: RunContext, model: ModelCaller) -> None:
    """Adds a compaction of the history to the output and stores it.

    It is stored before the next step begins; until then a new attempt makes it again. Raises
    RunError.
    """

    async def call_model(parameters: dict[str, Any], history: list[Item]) -> ModelReply:
        _, turn = await model.call(ModelInput(parameters, history), visible=False)
        return ModelReply(output_text(turn.output), turn.usage)

    compaction = CompactionTurn(context.resources.new_id, first_index=context.output.next_index)
    context.attempt.current_turn = compaction
    context.writer.write(compaction.open_events())
    history = await context.attachments.inline(context.history_to_store())
    content = await context.compactions.summary(history, call_model, compaction.add_call_usage)
    await context.writer.checkpoint(compaction.items, compaction, compaction.complete(content))


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
