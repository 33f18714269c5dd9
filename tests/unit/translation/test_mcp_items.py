"""The items of MCP, from `added` to `done`: in a turn, approved, restored, closed incomplete."""

from itertools import count
from typing import Any

import msgspec

from models.wire.events import Event, frame
from models.wire.snapshot import closing_events, find_unfinished, fold
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenApprovalRequest, OpenListTools, OpenMcpCall
from worker.translation.tool_catalog import build_tool_catalog
from worker.translation.upstream_events import CallDelta, ChatChunk

JSON = dict[str, Any]

PLACE = {"server_label": "files", "name": "read"}


def as_json(events: list[Event]) -> list[JSON]:
    """The events as a client reads them, without the places that all of them share."""
    result = [
        msgspec.json.decode(frame(event, number).partition(b"\ndata: ")[2])
        for number, event in enumerate(events)
    ]
    return [
        {
            key: value
            for key, value in event.items()
            if key not in ("sequence_number", "item_id", "output_index")
        }
        for event in result
    ]


def kinds(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in as_json(events)]


def translator(item: type[OpenMcpCall | OpenApprovalRequest]) -> ChatTranslator:
    numbers = count(1)
    function = ServerFunction(
        {"type": "mcp", **PLACE},
        "read",
        lambda index, new_id: item(index, new_id(item.prefix), **PLACE),
    )
    return ChatTranslator(
        lambda prefix: f"{prefix}_{next(numbers)}",
        ChatOptions(tool_catalog=build_tool_catalog({}, server_functions={"read": function})),
    )


def call(arguments: str = "", name: str = "read") -> ChatChunk:
    return ChatChunk(calls=(CallDelta(index=0, id="call_up", name=name, arguments=arguments),))


def test_an_mcp_call_streams_and_stays_open_until_its_result() -> None:
    turn = translator(OpenMcpCall)
    events = (
        turn.feed(call('{"path"'))
        + turn.feed(call(': "a"}', name=""))
        + turn.feed(ChatChunk(finish_reason="tool_calls"))
    )
    events += turn.finish(done_seen=True)
    assert kinds(events) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    assert as_json(events)[0]["item"] == {
        "id": "mcp_1",
        "type": "mcp_call",
        "status": "in_progress",
        "arguments": "",
        **PLACE,
    }
    (request,) = turn.server_calls
    answer = request.result({"output": "text"}, failed=False)
    assert kinds(answer) == ["mcp_call.completed", "output_item.done"]
    done = {
        "id": "mcp_1",
        "type": "mcp_call",
        "status": "completed",
        "arguments": '{"path": "a"}',
        "output": "text",
        **PLACE,
    }
    assert as_json(answer)[-1]["item"] == done
    assert turn.output == [done]


def test_a_call_without_arguments_means_an_empty_object() -> None:
    turn = translator(OpenMcpCall)
    events = (
        turn.feed(call()) + turn.feed(ChatChunk(finish_reason="stop")) + turn.finish(done_seen=True)
    )
    assert as_json(events)[-2:] == [
        {"type": "response.mcp_call_arguments.delta", "delta": "{}"},
        {"type": "response.mcp_call_arguments.done", "arguments": "{}"},
    ]


def test_a_failed_call_has_the_status_failed() -> None:
    request = OpenMcpCall(0, "mcp_1", arguments="{}", **PLACE)
    answer = request.result(request.failure_fields("too late"), failed=True)
    assert kinds(answer) == ["mcp_call.failed", "output_item.done"]
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "too late"}]}
    assert as_json(answer)[-1]["item"]["error"] == error


def test_an_approved_call_has_all_its_arguments_at_once() -> None:
    approved = OpenMcpCall(3, "mcp_1", arguments='{"a": 1}', approval_request_id="mcpr_1", **PLACE)
    events = approved.open_events()
    assert kinds(events) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    assert as_json(events)[0]["item"]["arguments"] == ""
    assert approved.to_json()["arguments"] == '{"a": 1}'
    assert approved.arguments_done() == []


def test_a_call_closed_while_it_runs_does_not_repeat_its_arguments() -> None:
    stored = OpenMcpCall(0, "mcp_1", arguments='{"a": 1}', **PLACE).to_json()
    assert kinds(OpenMcpCall.from_item(0, stored).close("incomplete")) == ["output_item.done"]


def test_a_call_that_is_cut_while_it_streams_has_no_complete_arguments() -> None:
    turn = translator(OpenMcpCall)
    turn.feed(call('{"pa'))
    events = turn.close_incomplete()
    assert kinds(events) == ["output_item.done"]
    assert as_json(events)[-1]["item"] == {
        "id": "mcp_1",
        "type": "mcp_call",
        "status": "incomplete",
        "arguments": '{"pa',
        **PLACE,
    }


def test_a_recovery_shows_and_closes_an_open_call_of_a_crashed_attempt() -> None:
    turn = translator(OpenMcpCall)
    frames = [frame(event, number) for number, event in enumerate(turn.feed(call('{"pa')))]
    published = [msgspec.json.decode(entry.partition(b"\ndata: ")[2]) for entry in frames]
    assert fold(published) == [
        {"id": "mcp_1", "type": "mcp_call", "status": "in_progress", "arguments": '{"pa', **PLACE}
    ]
    assert kinds(closing_events(find_unfinished(published))) == ["output_item.done"]


def test_an_approval_request_is_completed_with_its_arguments() -> None:
    turn = translator(OpenApprovalRequest)
    events = (
        turn.feed(call('{"path": "a"}'))
        + turn.feed(ChatChunk(finish_reason="tool_calls"))
        + turn.finish(done_seen=True)
    )
    assert kinds(events) == ["output_item.added", "output_item.done"]
    done = {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "status": "completed",
        "arguments": '{"path": "a"}',
        **PLACE,
    }
    assert as_json(events)[-1]["item"] == done
    assert turn.server_calls == []


def test_half_a_call_is_never_put_to_the_client_for_approval() -> None:
    turn = translator(OpenApprovalRequest)
    events = (
        turn.feed(call('{"path": "a'))
        + turn.feed(ChatChunk(finish_reason="stop"))
        + turn.finish(done_seen=True)
    )
    assert as_json(events)[-1]["item"]["status"] == "incomplete"
    assert turn.outcome is not None
    assert turn.outcome.failure is not None


def test_half_an_mcp_call_is_answered_with_an_error() -> None:
    """The turn goes on: the provider refuses to run it (tests/integration/tools)."""
    turn = translator(OpenMcpCall)
    turn.feed(call('{"path": "a'))
    turn.feed(ChatChunk(finish_reason="stop"))
    turn.finish(done_seen=True)
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"
    assert turn.needs_another_turn


def test_a_listing_has_its_own_events() -> None:
    listing = OpenListTools(0, "mcpl_1", server_label="files")
    opened = listing.open_events()
    assert kinds(opened) == ["output_item.added", "mcp_list_tools.in_progress"]
    assert as_json(opened)[0]["item"] == {
        "id": "mcpl_1",
        "type": "mcp_list_tools",
        "status": "in_progress",
        "server_label": "files",
        "tools": [],
    }
    assert kinds(listing.result({"tools": [{"name": "read"}]}, failed=False)) == [
        "mcp_list_tools.completed",
        "output_item.done",
    ]
    failed = OpenListTools(0, "mcpl_1", server_label="files")
    events = failed.result(failed.failure_fields("away"), failed=True)
    assert kinds(events) == ["mcp_list_tools.failed", "output_item.done"]
    assert (as_json(events)[-1]["item"]["error"], as_json(events)[-1]["item"]["tools"]) == (
        "away",
        [],
    )
