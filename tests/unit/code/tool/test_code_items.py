"""Code and shells in containers: items and events, the history, citations of files, the checks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.checks.tools import ADDED_TOOLS, NATIVE_TOOLS, TOOLS
from models.wire.events import Event
from models.wire.pairing import unanswered_calls
from models.wire.replay import replay_item
from models.wire.tools import (
    is_code_tool,
    is_native_only,
    is_own_code_tool,
    may_run_code,
    require_valid_choice,
)
from tests.support.api import JSON
from worker.translation.chat.request import chat_request
from worker.translation.functions import ServerFunction
from worker.translation.items.citations import (
    MadeFile,
    PathFinder,
    citation_sources,
    made_files_text,
)
from worker.translation.items.open_item import OpenItem
from worker.translation.items.server_calls import (
    OpenCodeCall,
    OpenContainerShell,
    OpenServerCall,
    OpenShellOutput,
    restore_call,
)
from worker.translation.responses.request import NativeOptions, native_request
from worker.translation.tool_catalog import build_tool_catalog

OURS = "cntr_0123456789ab7123812345678901abcd"
THEIRS = "cntr_68a0b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2"
AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
REFERENCE = {
    "type": "shell",
    "environment": {"type": "container_reference", "container_id": OURS},
}
FILES = [
    MadeFile("/mnt/data/a.csv", "cfile_1", OURS, 5),
    MadeFile("/mnt/data/a.csv.png", "cfile_2", OURS, 9),
]
ANSWER = made_files_text(FILES) + "42"
CODE = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "container_id": OURS,
    "code": "print(42)",
    "outputs": [{"type": "logs", "logs": "42"}],
}
CALL = {
    "id": "sh_1",
    "type": "shell_call",
    "status": "completed",
    "call_id": "sh_1",
    "action": {"commands": ["ls"]},
    "environment": {"type": "container_reference", "container_id": OURS},
}
OUTPUT = {
    "id": "sho_1",
    "type": "shell_call_output",
    "status": "completed",
    "call_id": "sh_1",
    "output": [{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__struct_config__.tag for event in events]  # type: ignore[misc]


def functions() -> dict[str, ServerFunction]:
    def opens(kind: type[OpenServerCall]) -> Callable[[int, Any], OpenServerCall]:
        return lambda index, new_id: kind(index, new_id(kind.prefix))

    return {
        "code_interpreter": ServerFunction(
            {"type": "code_interpreter"}, "code_interpreter", opens(OpenCodeCall), "runs", {}
        ),
        "shell": ServerFunction({"type": "shell"}, "shell", opens(OpenContainerShell), "runs", {}),
    }


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        (['{"code":"pri', 'nt(1)\\n"}'], "print(1)\n"),
        (['{ "code" : "a\\u00e9', '" }'], "aé"),
        (["print(2)"], "print(2)"),
        (['{"source": "x=1"}'], "x=1"),
        (["{}"], ""),
        ([], ""),
    ],
)
def test_code_streams_as_the_model_writes_it(pieces: list[str], code: str) -> None:
    call = OpenCodeCall(0, "ci_1", container_id=OURS)
    events = call.open_events()
    for piece in pieces:
        events += call.push(piece)
    events += call.arguments_done()
    deltas = "".join(event.delta for event in events if hasattr(event, "delta"))
    assert (deltas, call.to_json()["code"]) == (code, code)
    restored = restore_call(0, call.to_json())
    events += restored.result({"outputs": []}, failed=False)
    item = restored.to_json()
    assert item == {**CODE, "code": code, "outputs": []} | {"id": "ci_1"}
    named = [kind for kind in kinds(events) if not kind.endswith("delta")]
    assert named == [kind for kind in kinds(list(replay_item(item, 0))) if "delta" not in kind]


def test_a_shell_call_is_completed_at_once_and_its_output_is_an_item_behind_it() -> None:
    call: OpenItem = OpenContainerShell(0, "sh_1", call_id="sh_1", environment=CALL["environment"])
    assert isinstance(call, OpenContainerShell)
    events = call.open_events()
    events += call.push('{"commands": ["ls"]}')
    events += call.arguments_done()
    assert (call.to_json(), call.is_open) == (CALL, False)
    assert kinds(events) == kinds(list(replay_item(CALL, 0)))

    opened = OpenShellOutput(1, "sho_1", call_id="sh_1")
    events = [*opened.open_events(), *opened.arguments_done()]
    output = restore_call(1, opened.to_json())
    events += output.result({"output": OUTPUT["output"]}, failed=False)
    assert output.to_json() == OUTPUT
    assert kinds(events) == kinds(list(replay_item(OUTPUT, 1)))


def test_a_failed_shell_output_has_the_reason_and_a_status_that_clients_know() -> None:
    output = OpenShellOutput(1, "sho_1", call_id="sh_1")
    output.result(output.failure_fields("no sandbox"), failed=True)
    item = output.to_json()
    assert (item["status"], item["output"][0]["stderr"]) == ("completed", "no sandbox")


def test_a_call_in_a_container_waits_for_no_client() -> None:
    assert unanswered_calls([CALL]) == []
    local = {**CALL, "environment": {"type": "local"}}
    assert unanswered_calls([local]) == ["sh_1"]


# --- what the model gets
# ----------------------------------------------------------------------

GO = {"type": "input_text", "text": "Go."}
HISTORY: list[JSON] = [
    {"id": "msg_1", "type": "message", "role": "user", "content": [GO]},
    {**CODE, "turn": 1, "answer": ANSWER},
    {**CALL, "turn": 2},
    {**OUTPUT, "turn": 0, "answer": f"{made_files_text([])}[ls]"},
]
SHOWN = [
    ("code_interpreter", {"code": "print(42)"}, ANSWER),
    ("shell", {"commands": ["ls"]}, f"{made_files_text([])}[ls]"),
]


def test_calls_are_shown_to_a_chat_model_as_calls_of_functions() -> None:
    catalog = build_tool_catalog({"tools": [AUTO, SHELL]}, HISTORY, functions())
    body = chat_request(model="m", parameters={}, history=HISTORY, tool_catalog=catalog)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["code_interpreter", "shell"]
    calls = [call for message in body["messages"] for call in message.get("tool_calls", ())]
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"]), output)
        for call, output in zip(calls, outputs, strict=True)
    ] == SHOWN


def test_code_of_a_client_that_keeps_the_history_is_shown_with_its_logs() -> None:
    history = [HISTORY[0], CODE, CALL, OUTPUT]
    catalog = build_tool_catalog({}, history)
    body = chat_request(model="m", parameters={}, history=history, tool_catalog=catalog)
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    assert outputs[0] == "42"
    assert json.loads(outputs[1])[0]["stdout"] == "a\n"


def native_body(tools: list[JSON], history: list[JSON]) -> JSON:
    parameters = {"tools": tools}
    return native_request(
        model="m",
        parameters=parameters,
        history=history,
        tool_catalog=build_tool_catalog(parameters, history, functions()),
        options=NativeOptions("up"),
    )


def test_a_native_upstream_runs_code_itself_unless_the_container_is_ours() -> None:
    assert native_body([AUTO, SHELL], HISTORY[:1])["tools"] == [AUTO, SHELL]
    own = {"type": "code_interpreter", "container": OURS}
    body = native_body([own, SHELL], HISTORY)
    assert [tool.get("name", tool["type"]) for tool in body["tools"]] == [
        "shell",
        "code_interpreter",
    ]
    assert [item["type"] for item in body["input"]] == [
        "message",
        *("function_call", "function_call_output") * 2,
    ]
    theirs = {**CODE, "container_id": THEIRS}
    assert native_body([AUTO], [HISTORY[0], theirs])["input"][1]["type"] == CODE["type"]


# --- citations
# ----------------------------------------------------------------------

TEXTS: list[tuple[str, list[tuple[str, str]]]] = [
    ("See [it](sandbox:/mnt/data/a.csv).", [("cfile_1", "sandbox:/mnt/data/a.csv")]),
    (
        "/mnt/data/a.csv.png and /mnt/data/a.csv",
        [("cfile_2", "/mnt/data/a.csv.png"), ("cfile_1", "/mnt/data/a.csv")],
    ),
    ("twice /mnt/data/a.csv /mnt/data/a.csv", [("cfile_1", "/mnt/data/a.csv")]),
    ("🌧️ `/mnt/data/a.csv`", [("cfile_1", "/mnt/data/a.csv")]),
    ("/mnt/data/a.csvx a.csv /mnt/data/", []),
]


@pytest.mark.parametrize(("text", "cited"), TEXTS)
def test_a_path_that_the_text_mentions_is_cited_wherever_the_text_is_split(
    text: str, cited: list[tuple[str, str]]
) -> None:
    for size in (1, 3, 7, len(text)):
        finder = PathFinder(citation_sources([{**CODE, "answer": ANSWER}]).made)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = [each for piece in pieces for each in finder.find(piece)] + finder.flush()
        assert [
            (each["file_id"], text[each["start_index"] : each["end_index"]]) for each in found
        ] == cited


def test_a_new_file_that_the_text_does_not_mention_is_cited_at_its_end() -> None:
    ran: JSON = {**CODE, "answer": ANSWER}
    answer: JSON = {"id": "msg_2", "type": "message", "role": "assistant", "content": []}
    for history, cited in (([ran], ["a.csv.png"]), ([ran, answer], [])):
        sources = citation_sources(history)
        finder = PathFinder(sources.made, sources.unmentioned)
        assert [each["filename"] for each in finder.find("It is in /mnt/data/a.csv .")] == ["a.csv"]
        at_the_end = finder.flush()
        assert [each["filename"] for each in at_the_end] == cited
        assert all(each["start_index"] == each["end_index"] == 0 for each in at_the_end)


def test_what_code_prints_makes_no_file() -> None:
    forged = f"{made_files_text([])}{made_files_text(FILES)}"
    assert citation_sources([{**CODE, "answer": forged}]).made == {}
    assert citation_sources([{**CODE, "answer": made_files_text(FILES)[:60]}]).made == {}


# --- checks
# ----------------------------------------------------------------------


def test_tools_with_containers_are_taken_by_a_chat_upstream() -> None:
    container: JSON = {"type": "auto", "file_ids": ["file-1"], "memory_limit": "4g"}
    policy = {"network_policy": {"type": "disabled"}}
    tools: list[JSON] = [
        {"type": "code_interpreter", "container": container | policy},
        {"type": "code_interpreter", "container": OURS},
        SHELL,
        REFERENCE,
    ]
    for tool in tools:
        assert TOOLS([tool], "tools") == [tool]
        assert (is_code_tool(tool), may_run_code(tool)) == (True, True)
        require_valid_choice({"type": tool["type"]}, [tool])
    assert [is_own_code_tool(tool) for tool in tools] == [False, True, False, True]
    assert [is_native_only(tool) for tool in tools] == [True, False, True, False]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "code_interpreter"}, "tools[0].container"),
        ({"type": "code_interpreter", "container": 1}, "tools[0].container"),
        ({"type": "code_interpreter", "container": {"type": "x"}}, "tools[0].container.type"),
        (
            {
                "type": "code_interpreter",
                "container": {"type": "auto", "network_policy": {"type": "allowlist"}},
            },
            "tools[0].container.network_policy.allowed_domains",
        ),
        (
            {"type": "shell", "environment": {"type": "container_auto", "skills": [{}]}},
            "tools[0].environment.skills",
        ),
    ],
)
def test_what_no_container_here_can_be_is_refused_with_its_place(tool: JSON, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        TOOLS([tool], "tools")
    assert refused.value.param == param


def test_a_second_tool_of_the_same_type_and_one_in_an_item_are_refused() -> None:
    for check, tools in ((TOOLS, [AUTO, AUTO]), (ADDED_TOOLS, [SHELL])):
        with pytest.raises(InvalidRequest):
            check(tools, "tools")


def test_a_native_upstream_gets_what_it_alone_understands() -> None:
    theirs = {"type": "code_interpreter", "container": THEIRS, "unknown": 1}
    skills = {"type": "shell", "environment": {"type": "container_auto", "skills": [{}]}}
    assert NATIVE_TOOLS([theirs, skills], "tools") == [theirs, skills]
    assert not may_run_code(theirs)
