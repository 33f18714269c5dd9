"""Server tools: the names that the model knows, the offered functions, and what calls become."""

import json
from typing import Any

import pytest

from tests.support.api import JSON
from tests.support.chat_turns import counter, decoded
from worker.translation.chat.request import chat_request
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.functions import ServerFunction, model_tool_name, model_tool_names
from worker.translation.items.server_calls import OpenMcpCall
from worker.translation.request_parameters import relax_tool_choice
from worker.translation.tool_catalog import build_tool_catalog
from worker.upstream.chat_chunks import parse_chunk


def function(label: str, name: str, **more: Any) -> ServerFunction:
    tool = {"type": "mcp", "server_label": label, "name": name}

    def opens(output_index: int, new_id: Any) -> OpenMcpCall:
        return OpenMcpCall(output_index, new_id("mcp"), server_label=label, name=name)

    return ServerFunction(tool=tool, name=name, open_call=opens, **more)


def named(*functions: ServerFunction, taken: tuple[str, ...] = ()) -> dict[str, str]:
    return {
        name: f"{entry.tool['server_label']}/{entry.name}"
        for name, entry in model_tool_names(functions, taken).items()
    }


# --- names
# ----------------------------------------------------------------------


def test_a_free_name_stays_as_it_is() -> None:
    assert named(function("a", "search"), function("b", "fetch")) == {
        "search": "a/search",
        "fetch": "b/fetch",
    }


def test_equal_names_of_two_servers_get_their_labels() -> None:
    assert named(function("a", "search"), function("b", "search")) == {
        "a__search": "a/search",
        "b__search": "b/search",
    }


def test_a_name_of_a_client_tool_stays_with_the_client() -> None:
    assert named(function("a", "search"), taken=("search",)) == {"a__search": "a/search"}


@pytest.mark.parametrize("name", ["x" * 65, "with space", "punkt.punkt", "ö", "x" * 128])
def test_a_name_that_no_chat_server_takes_becomes_one_that_all_do(name: str) -> None:
    (result,) = named(function("label", name))
    assert len(result) <= 64
    assert result.replace("_", "").replace("-", "").isascii()
    assert result.replace("_", "").replace("-", "").isalnum()


def test_names_stay_distinct_whatever_they_are() -> None:
    awkward = ["a", "a.b", "a_b", "a b", "b__a", "x" * 64 + "1", "x" * 64 + "2", "x" * 64 + "3"]
    functions = [function(label, name) for label in ("a", "b", "a__a") for name in awkward]
    names = model_tool_names(functions, ["a__a", "b__a.b", "a_b"])
    assert len(names) == len(functions)
    assert list(names.values()) == functions
    assert not {"a__a", "b__a.b", "a_b"} & set(names)
    assert names == model_tool_names(functions, ["a__a", "b__a.b", "a_b"])


def test_a_call_in_the_history_has_the_name_its_function_is_offered_under() -> None:
    offered = model_tool_names([function("a", "search"), function("b", "search")], ())
    assert (
        model_tool_name({"type": "mcp_call", "server_label": "b", "name": "search"}, offered)
        == "b__search"
    )
    assert (
        model_tool_name({"type": "mcp_call", "server_label": "gone", "name": "look up"}, offered)
        == "look_up"
    )
    assert model_tool_name({"type": "web_search_call"}, offered) == "web_search"


# --- what the model is offered
# ----------------------------------------------------------------------

OFFERED = model_tool_names(
    [function("a", "one", description="First."), function("a", "two"), function("b", "one")], ()
)
CLIENTS = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
MCP = [{"type": "mcp", "server_label": "a"}, {"type": "mcp", "server_label": "b"}]


def body(history: list[JSON] | None = None, **parameters: Any) -> JSON:
    user = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello."}],
    }
    request = {"tools": [CLIENTS, *MCP], **parameters}
    texts = [user, *(history or [])]
    return chat_request(
        model="m",
        parameters=request,
        history=texts,
        tool_catalog=build_tool_catalog(request, texts, OFFERED),
    )


def offered_in(sent: JSON) -> list[str]:
    return [tool["function"]["name"] for tool in sent.get("tools", [])]


def test_server_functions_are_offered_after_the_clients() -> None:
    sent = body()
    assert offered_in(sent) == ["mine", "a__one", "two", "b__one"]
    assert sent["tools"][1]["function"] == {
        "name": "a__one",
        "description": "First.",
        "parameters": {"type": "object", "properties": {}},
    }
    assert "tool_choice" not in sent


@pytest.mark.parametrize(
    ("choice", "names", "sent", "may_call"),
    [
        ({"type": "mcp", "server_label": "a"}, ["a__one", "two"], "required", {"a__one", "two"}),
        ({"type": "mcp", "server_label": "b", "name": "one"}, ["b__one"], "required", {"b__one"}),
        (
            {"type": "function", "name": "mine"},
            ["mine", "a__one", "two", "b__one"],
            {"type": "function", "function": {"name": "mine"}},
            {"mine"},
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [
                    {"type": "mcp", "server_label": "a"},
                    {"type": "function", "name": "mine"},
                ],
            },
            ["mine", "a__one", "two"],
            "auto",
            {"mine", "a__one", "two"},
        ),
        ("none", ["mine", "a__one", "two", "b__one"], "none", set()),
        ("required", ["mine", "a__one", "two", "b__one"], "required", None),
    ],
)
def test_tool_choice_applies_to_server_functions(
    choice: Any, names: list[str], sent: Any, may_call: set[str] | None
) -> None:
    result = body(tool_choice=choice)
    assert offered_in(result) == names
    assert result["tool_choice"] == sent
    assert (
        build_tool_catalog(
            {"tools": [CLIENTS, *MCP], "tool_choice": choice}, (), OFFERED
        ).callable_names
        == may_call
    )


def test_a_required_call_is_required_only_once() -> None:
    assert relax_tool_choice({"tool_choice": "required"}) == {"tool_choice": "auto"}
    assert relax_tool_choice({"tool_choice": {"type": "mcp", "server_label": "a"}}) == {
        "tool_choice": "auto"
    }
    allowed = {"type": "allowed_tools", "mode": "required", "tools": MCP}
    assert relax_tool_choice({"tool_choice": allowed}) == {
        "tool_choice": {**allowed, "mode": "auto"}
    }
    for stored in ({}, {"tool_choice": "none"}, {"tool_choice": "auto"}):
        assert relax_tool_choice(stored) == stored


# --- calls in the history
# ----------------------------------------------------------------------


def ran(nr: int, name: str = "two", **more: Any) -> JSON:
    item = {
        "type": "mcp_call",
        "id": f"mcp_{nr}",
        "status": "completed",
        "server_label": "a",
        "name": name,
        "arguments": json.dumps({"n": nr}),
    }
    return {**item, "output": f"out {nr}", **more}


def called(nr: int, name: str = "two", arguments: str | None = None) -> JSON:
    return {
        "id": f"mcp_{nr}",
        "type": "function",
        "function": {"name": name, "arguments": arguments or json.dumps({"n": nr})},
    }


def tool_message(nr: int, content: str) -> JSON:
    return {"role": "tool", "tool_call_id": f"mcp_{nr}", "content": content}


def test_calls_of_one_turn_are_one_message_and_those_of_the_next_another() -> None:
    text = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see."}],
    }
    result = body([text, ran(1, turn=1), ran(2, "one", turn=1), ran(3, turn=2)])["messages"][1:]
    assert result == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [called(1), called(2, "a__one")],
        },
        tool_message(1, "out 1"),
        tool_message(2, "out 2"),
        {"role": "assistant", "content": None, "tool_calls": [called(3)]},
        tool_message(3, "out 3"),
    ]


def test_calls_without_a_turn_number_come_one_after_the_other() -> None:
    result = body([ran(1), ran(2)])["messages"][1:]
    assert [message["role"] for message in result] == ["assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    ("item", "content"),
    [
        (ran(1, output=None, error="gone", status="failed"), "Error: gone"),
        (
            ran(
                1,
                output=None,
                error={"type": "http_error", "code": 500, "message": "gone"},
                status="failed",
            ),
            "Error: gone",
        ),
        (
            ran(
                1,
                output=None,
                error={
                    "type": "mcp_tool_execution_error",
                    "content": [{"type": "text", "text": "gone"}],
                },
            ),
            "Error: gone",
        ),
        (
            ran(1, output=None, error={"type": "mcp_tool_execution_error", "content": 7}),
            'Error: {"type": "mcp_tool_execution_error", "content": 7}',
        ),
        (ran(1, answer="said instead", turn=1), "said instead"),
        (
            ran(
                1, answer=[{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
            ),
            "a\nb",
        ),
        (ran(1, output=""), "(empty)"),
    ],
)
def test_the_model_gets_the_same_output_again(item: JSON, content: str) -> None:
    assert body([item])["messages"][2] == tool_message(1, content)


def test_an_image_of_a_tool_is_sent_in_a_user_message() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    result = body([ran(1, answer=[{"type": "input_text", "text": "a"}, image])])["messages"]
    assert result[2] == tool_message(1, "a\n[image: see the next user message]")
    assert result[3]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": image["image_url"]},
    }


@pytest.mark.parametrize("arguments", ["", "no json", '"text"', "[1]", '{"cut', "null"])
def test_arguments_that_are_no_object_break_no_template(arguments: str) -> None:
    (call,) = body([ran(1, arguments=arguments)])["messages"][1]["tool_calls"]
    kept = {} if arguments in ("", "null") else {"invalid_arguments": arguments}
    assert json.loads(call["function"]["arguments"]) == kept


def test_a_search_in_the_history_has_its_query_and_results() -> None:
    item = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "größe"},
    }
    assert len(body([item])["messages"]) == 1, "nobody knows what it found"
    call, answer = body([{**item, "answer": "found", "turn": 1}])["messages"][1:]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"query": "größe"}
    assert answer == {"role": "tool", "tool_call_id": "ws_1", "content": "found"}


def test_incomplete_server_calls_are_left_out() -> None:
    assert len(body([ran(1, status="incomplete", output=None)])["messages"]) == 1


# --- a turn that calls them
# ----------------------------------------------------------------------


def call(index: int, name: str, arguments: str = "{}") -> JSON:
    piece = {
        "index": index,
        "id": f"up_{index}",
        "function": {"name": name, "arguments": arguments},
    }
    return {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": None}]}


def turn(
    *chunks: JSON, reason: str = "tool_calls", **options: Any
) -> tuple[ChatTranslator, list[JSON]]:
    translator = ChatTranslator(
        counter(),
        ChatOptions(
            tool_catalog=build_tool_catalog({"tools": [CLIENTS, *MCP]}, (), OFFERED), **options
        ),
    )
    published = []
    for chunk in (*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}):
        published += translator.feed(parse_chunk(json.dumps(chunk).encode()))
    return translator, decoded([*published, *translator.finish(done_seen=True)])


def shapes(translator: ChatTranslator) -> list[tuple[str, str]]:
    return [(item["type"], item["status"]) for item in translator.output]


def test_a_turn_without_server_calls_is_the_last() -> None:
    assert not turn(call(0, "mine"))[0].needs_another_turn


def test_a_server_call_stays_open_and_holds_back_the_call_behind_it() -> None:
    translator, events = turn(call(0, "two", '{"n": 1}'), call(1, "mine"))
    assert translator.needs_another_turn
    assert shapes(translator) == [("mcp_call", "in_progress"), ("function_call", "completed")]
    assert [item.fields["arguments"] for item in translator.server_calls] == ['{"n": 1}']
    assert {event["output_index"] for event in events} == {0}, (
        "the call behind it is sent once the server call has its result"
    )


def test_server_calls_above_the_limit_fail_and_are_not_run() -> None:
    translator, _ = turn(*(call(nr, "two") for nr in range(4)), calls_allowed=2)
    assert [status for _, status in shapes(translator)] == [
        "in_progress",
        "in_progress",
        "failed",
        "failed",
    ]
    assert len(translator.server_calls) == 2
    assert set(translator.rejected_calls) == {item["id"] for item in translator.output[2:]}
    assert all("limit" in refusal for refusal in translator.rejected_calls.values())


def test_server_calls_beyond_what_the_request_allows_are_no_items() -> None:
    translator, _ = turn(call(0, "two"), call(1, "two"), call(2, "mine"), calls_left=1)
    assert shapes(translator) == [("mcp_call", "in_progress"), ("function_call", "completed")]
    assert translator.rejected_calls == {}
    assert translator.needs_another_turn


def test_a_turn_with_nothing_but_ignored_calls_is_the_last() -> None:
    translator, events = turn(call(0, "two"), calls_left=0)
    assert events == []
    assert translator.outcome is not None
    assert translator.outcome.status == "completed"
    assert not translator.needs_another_turn


def test_an_unknown_function_gets_an_error_so_that_the_model_continues() -> None:
    translator, events = turn(call(0, "nonsense"), call(1, "mine"))
    assert translator.needs_another_turn
    assert shapes(translator) == [
        ("function_call", "completed"),
        ("function_call", "completed"),
        ("function_call_output", "completed"),
    ]
    answer = translator.output[2]
    assert (answer["call_id"], answer["output"]) == (
        "up_0",
        "Error: There is no tool named 'nonsense'.",
    )
    assert [event["type"] for event in events][-2:] == [
        "response.output_item.added",
        "response.output_item.done",
    ]


def test_without_server_functions_the_client_answers_an_unknown_name() -> None:
    translator = ChatTranslator(
        counter(), ChatOptions(tool_catalog=build_tool_catalog({"tools": [CLIENTS]}))
    )
    translator.feed(parse_chunk(json.dumps(call(0, "nonsense")).encode()))
    translator.finish(done_seen=True)
    assert not translator.needs_another_turn
    assert [item["type"] for item in translator.output] == ["function_call"]


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_an_incomplete_turn_runs_no_server_calls(reason: str) -> None:
    translator, _ = turn(call(0, "two"), call(1, "nonsense"), reason=reason)
    assert not translator.needs_another_turn
    assert translator.server_calls == []
    assert shapes(translator)[0] == ("mcp_call", "incomplete")


def test_a_call_is_restored_from_its_item_alone() -> None:
    translator, _ = turn(call(0, "two", '{"n": 1}'))
    item = translator.output[0]
    again = OpenMcpCall.from_item(0, item)
    assert again.to_json() == item
    answers = [
        call.result({"output": "text"}, failed=False) for call in (again, *translator.server_calls)
    ]
    assert decoded(answers[0]) == decoded(answers[1])
    assert [
        event["type"] for event in decoded(OpenMcpCall.from_item(0, item).close("incomplete"))
    ] == ["response.output_item.done"]
