"""The spans of an attempt, and of its calls of upstreams and server tools, by OpenTelemetry's
conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/).

The trace is in the row, so each attempt continues it, whatever process runs it. The span of an
attempt whose process was killed is lost with that process; the spans below it that had ended are
not.

With BACKBURNER_TRACES__CONTENT, spans also show what models and tools get and answer: messages with
parts, as JSON.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from models.config.upstream import UpstreamSettings
from models.errors import Deferred
from models.ids import response_id
from models.lifecycle import Status
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, INTERACTIVE
from models.tracing.spans import NO_SPAN, Span, SpanKind, Tracer, traceparent_of
from models.wire.events import Item
from worker.run.end_state import EndState
from worker.tools.provider import ToolCallError, ToolResult
from worker.translation.turn import Turn, TurnOutcome

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


def start_attempt_span(tracer: Tracer | None, claim: Claim) -> Span:
    """The span of a claimed response's run, and that of its wait in the queue before the first one.
    The caller ends it by `end_attempt_span`."""
    if tracer is None:
        return NO_SPAN
    row = claim.row
    traceparent = row.traceparent or traceparent_of(row.id)
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
    if upstream.api != "messages":
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


def start_tool_span(parent: Span, item: Item, *, has_content: bool) -> Span:
    """The span of the call of this item, below the attempt.

    `has_content`: the span shows what the tool gets.
    """
    if not parent.is_recorded:
        return NO_SPAN
    name = item.get("name") or item["type"]
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "extension",  # a tool that the server runs, not the client
        "gen_ai.tool.call.id": item["id"],
        "backburner.item.type": item["type"],
    }
    if "server_label" in item:
        attributes["backburner.mcp.server_label"] = item["server_label"]
    span = parent.start(f"execute_tool {name}", attributes)
    if has_content:
        span.set(arguments_attributes(item))
    return span


def end_tool_span(
    span: Span, result: ToolResult | ToolCallError | None, *, has_content: bool
) -> None:
    """Ends the span. `result`: None if the call was broken off, or must end the response."""
    if not span.is_recorded:
        return
    if result is None:
        span.fail("stopped")
    elif isinstance(result, ToolCallError) or result.failed:
        span.fail("tool_error")
    if has_content and isinstance(result, ToolResult):
        span.set(result_attributes(result.tool_output or dict(result.fields)))
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


def _finish_reason(turn: Turn[Any], outcome: TurnOutcome) -> str:
    """The reason in the words of Chat Completions, which the conventions use."""
    if outcome.incomplete_reason is not None:
        return _FINISH_REASONS.get(outcome.incomplete_reason, outcome.incomplete_reason)
    return "tool_calls" if turn.calls or turn.server_calls else "stop"


_MAX_LENGTH = 64 * 1024
"""Characters of one attribute. Of longer ones the newest messages are kept."""


def input_attributes(parameters: dict[str, Any], history: Sequence[Item]) -> dict[str, str]:
    """What a call sends to the model."""
    attributes = {"gen_ai.input.messages": _encode(_message(item) for item in reversed(history))}
    instructions = parameters.get("instructions")
    if isinstance(instructions, str):
        attributes["gen_ai.system_instructions"] = _encode(iter([_text(instructions)]))
    return attributes


def output_attributes(items: Sequence[Item], finish_reason: str) -> dict[str, str]:
    """What the model has answered."""
    parts = [part for item in items for part in _message(item)["parts"]]
    message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
    return {"gen_ai.output.messages": _encode(iter([message]))}


def arguments_attributes(item: Item) -> dict[str, str]:
    """What a tool gets."""
    arguments = item.get("arguments") or item.get("action") or item.get("queries") or {}
    return {"gen_ai.tool.call.arguments": _limited(arguments)}


def result_attributes(result: object) -> dict[str, str]:
    """What a tool has answered."""
    return {"gen_ai.tool.call.result": _limited(result)}


def _message(item: Item) -> dict[str, Any]:
    kind: str = item["type"]
    if kind == "message":
        content = item.get("content") or []
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {"role": item.get("role", "user"), "parts": [_part(part) for part in texts]}
    call_id = item.get("call_id") or item.get("id", "")
    if kind.endswith("_output"):
        result = {"type": "tool_call_response", "id": call_id, "result": item.get("output")}
        return {"role": "tool", "parts": [result]}
    if kind == "reasoning":
        summary = "\n".join(part.get("text", "") for part in item.get("summary") or ())
        return {"role": "assistant", "parts": [{"type": "reasoning", "content": summary}]}
    call = {"type": "tool_call", "id": call_id, "name": item.get("name", kind)}
    parts = [call | {"arguments": item.get("arguments") or item.get("action")}]
    if item.get("output") is not None:
        parts.append({"type": "tool_call_response", "id": call_id, "result": item["output"]})
    return {"role": "assistant", "parts": parts}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a message. Images, files and audio are named, without their data."""
    return _text(part["text"]) if "text" in part else {"type": part.get("type")}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _encode(newest_first: Iterator[dict[str, Any]]) -> str:
    """The messages as JSON, in the order of time."""
    encoded: list[str] = []
    length = 2
    for message in newest_first:
        one = _json(message)
        length += len(one) + 1
        if length > _MAX_LENGTH:
            break
        encoded.append(one)
    return f"[{','.join(reversed(encoded))}]"


def _json(value: object) -> str:
    # Not orjson: it refuses some integers, and a span must not end a response.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _limited(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text[:_MAX_LENGTH]
