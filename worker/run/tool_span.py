"""The span of a call of a server tool, by OpenTelemetry's conventions for generative AI."""

from models.tracing.spans import NO_SPAN, Span
from models.wire.events import Item
from worker.run.span_content import arguments_attributes, result_attributes
from worker.tools.provider import ToolCallError, ToolResult


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
