"""The span of a call of an upstream, by OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/)."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_OPERATIONS = {
    "/chat/completions": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
"""Path of a forwarded request -> its operation in the conventions. The others have none there."""
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
    attributes = _attributes("chat", upstream, model)
    attributes["openai.api.type"] = (
        "responses" if upstream.api == "responses" else "chat_completions"
    )
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


@contextmanager
def forwarding_span(
    parent: Span, upstream: UpstreamSettings, model: str, path: str
) -> Iterator[Span]:
    """The span of a request that is forwarded to `upstream`, below its attempt. `model`: its name
    there. `path`: behind the base URL."""
    if not parent.is_recorded:
        yield NO_SPAN
        return
    operation = _OPERATIONS.get(path, path.rpartition("/")[2])
    attributes = _attributes(operation, upstream, model)
    span = parent.start(f"{operation} {model}", attributes, SpanKind.CLIENT)
    try:
        yield span
    except BaseException as error:
        span.fail(error_type(error))
        raise
    finally:
        span.end()


def _attributes(
    operation: str, upstream: UpstreamSettings, model: str
) -> dict[str, str | int | float]:
    address = urlsplit(upstream.base_url)
    return {
        "gen_ai.operation.name": operation,
        # The API that it speaks; `server.address` shows whose it is.
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": model,
        "backburner.upstream": upstream.name,
        "server.address": address.hostname or "",
        "server.port": address.port or _DEFAULT_PORTS.get(address.scheme, 0),
    }


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
