"""The span of a call of an upstream, by OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/)."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from models.config.upstream import UpstreamSettings
from models.errors import Deferred
from models.tracing.spans import NO_SPAN, Span, SpanKind
from models.wire.events import Item
from worker.run.span_content import input_attributes, output_attributes
from worker.translation.turn import Outcome, Turn

_DEFAULT_PORTS = {"http": 80, "https": 443}
_REQUEST_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_output_tokens": "gen_ai.request.max_tokens",
}
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def start_call_span(
    parent: Span,
    upstream: UpstreamSettings,
    model: str,
    parameters: dict[str, Any],
    history: Sequence[Item],
    *,
    has_content: bool,
) -> Span:
    """The span of a call of `upstream`, below its turn. `model`: its name there.

    `has_content`: the span shows what the model gets.
    """
    if not parent.is_recorded:
        return NO_SPAN if parent is NO_SPAN else parent.start("chat")
    address = urlsplit(upstream.base_url)
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        # The API that it speaks; `server.address` shows whose it is.
        "gen_ai.provider.name": "openai",
        "openai.api.type": "responses" if upstream.api == "responses" else "chat_completions",
        "gen_ai.request.model": model,
        "backburner.upstream": upstream.name,
        "server.address": address.hostname or "",
        "server.port": address.port or _DEFAULT_PORTS.get(address.scheme, 0),
    }
    for parameter, attribute in _REQUEST_ATTRIBUTES.items():
        if (value := parameters.get(parameter)) is not None:
            attributes[attribute] = value
    span = parent.start(f"chat {model}", attributes, SpanKind.CLIENT)
    if has_content:
        span.set(input_attributes(parameters, history))
    return span


def end_call_span(
    span: Span, turn: Turn[Any], error: BaseException | None, *, has_content: bool
) -> None:
    """Ends the span of a call. `error`: why it has no outcome, or failed."""
    if not span.is_recorded:
        return
    if turn.model is not None:
        span.set({"gen_ai.response.model": turn.model})
    if (usage := turn.upstream_usage) is not None:
        counts = ("input_tokens", "output_tokens")
        span.set({f"gen_ai.usage.{name}": usage[name] for name in counts})
    if error is not None:
        span.fail(error_type(error))
    elif turn.outcome is not None:
        reason = _finish_reason(turn, turn.outcome)
        span.set({"gen_ai.response.finish_reasons": [reason]})
        if has_content:
            span.set(output_attributes(turn.output, reason))
    span.end()


def error_type(error: BaseException) -> str:
    """The `error.type` of a span: the reason of an error of a run, or the name of the exception."""
    if isinstance(error, asyncio.CancelledError):
        return "stopped"
    if isinstance(error, Deferred):
        return error.failures[-1].reason
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) else type(error).__name__


def _finish_reason(turn: Turn[Any], outcome: Outcome) -> str:
    """The reason in the words of Chat Completions, which the conventions use."""
    if outcome.incomplete_reason is not None:
        return _FINISH_REASONS.get(outcome.incomplete_reason, outcome.incomplete_reason)
    return "tool_calls" if turn.calls or turn.server_calls else "stop"
