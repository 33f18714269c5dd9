"""The logs of the fake upstream and of the counting tools in the form of the auditor."""

from tests.chaos.audit.record import ToolCall, UpstreamCall
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import ToolCallLog


def upstream_log(fake: FakeUpstream, markers: set[str]) -> list[UpstreamCall]:
    """The fake upstream's log of the requests for these models, for `RunRecord.upstream`."""
    return [
        UpstreamCall(
            marker=request.model,
            started=request.started,
            worker=request.headers.get("authorization", "").partition("/")[2] or None,
            request_messages=request.body_text,
            request_texts=request.texts,
            sent_text=request.sent_text,
            closed=request.closed_by_client,
            finished=request.finished,
            is_complete_turn=request.finished is not None and request.finish_reason_sent,
        )
        for request in fake.requests
        if request.method == "POST" and request.model in markers
    ]


def tool_log(counting: ToolCallLog, safe: frozenset[str] = frozenset()) -> list[ToolCall]:
    """A counting MCP server's log, for `RunRecord.tools`.

    A call's `key` argument is `<marker>/<key of the call>`. `safe`: the names of the tools that
    declare themselves read-only or idempotent.
    """
    calls = []
    for call in counting.calls:
        marker, _, key = str(call.arguments.get("key")).partition("/")
        calls.append(
            ToolCall(
                marker, f"{call.tool} {key}", call.started, call.finished, safe=call.tool in safe
            )
        )
    return calls
