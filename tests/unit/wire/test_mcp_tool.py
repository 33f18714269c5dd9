"""The `mcp` tool of a request: what is stored, what is sealed, and what its filters mean."""

from dataclasses import dataclass
from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.mcp import is_allowed, is_repeatable, needs_approval, unmet_approvals
from models.wire.request import CreateRequest, parse_create, with_approvals

JSON = dict[str, Any]

SERVER: JSON = {
    "type": "mcp",
    "server_label": "files",
    "server_url": "https://mcp.example.com/s/secret-path?key=secret-query",
}
READS = {"readOnlyHint": True}


def parsed(*tools: JSON, **more: Any) -> CreateRequest:
    return parse_create(
        {"model": "m", "input": "hi", "tools": list(tools), **more},
        new_id=lambda prefix: f"{prefix}_1",
    )


def test_credentials_are_separated_from_what_is_stored_and_shown() -> None:
    authorization, headers = "secret-token", {"X-Key": "secret-header"}
    request = parsed(
        {
            **SERVER,
            "authorization": authorization,
            "headers": headers,
            "server_description": "d",
            "allowed_tools": ["a"],
        }
    )
    assert request.credentials == {
        "files": {
            "server_url": SERVER["server_url"],
            "authorization": authorization,
            "headers": headers,
        }
    }
    shown = {
        "type": "mcp",
        "server_label": "files",
        "server_url": "https://mcp.example.com",
        "server_description": "d",
        "allowed_tools": ["a"],
    }
    assert request.parameters["tools"] == [shown]
    assert "secret" not in repr(request)


def test_several_servers_and_other_tools_keep_their_order() -> None:
    function = {"type": "function", "name": "echo"}
    request = parsed(SERVER, function, {**SERVER, "server_label": "more"})
    assert [tool.get("server_label") or tool["name"] for tool in request.parameters["tools"]] == [
        "files",
        "echo",
        "more",
    ]
    assert set(request.credentials) == {"files", "more"}


@dataclass(frozen=True, slots=True)
class Wrong:
    name: str
    change: JSON
    param: str
    code: str
    words: str


WRONG = [
    Wrong(
        "no label",
        {"server_label": None},
        "tools[0].server_label",
        "missing_required_parameter",
        "Missing required parameter",
    ),
    Wrong(
        "a label that no name can hold",
        {"server_label": "my server"},
        "tools[0].server_label",
        "invalid_value",
        "pattern",
    ),
    Wrong(
        "no address",
        {"server_url": None},
        "tools[0].server_url",
        "missing_required_parameter",
        "Missing required parameter",
    ),
    Wrong(
        "no address at all",
        {"server_url": "secret"},
        "tools[0].server_url",
        "invalid_value",
        "pattern",
    ),
    Wrong(
        "another scheme",
        {"server_url": "file:///secret"},
        "tools[0].server_url",
        "invalid_value",
        "pattern",
    ),
    Wrong(
        "an address with a password",
        {"server_url": "http://u:secret@h/"},
        "tools[0].server_url",
        "invalid_value",
        "pattern",
    ),
    Wrong(
        "a connector",
        {"connector_id": "connector_gmail"},
        "tools[0].connector_id",
        "unsupported_parameter",
        "no connectors",
    ),
    Wrong(
        "a tunnel", {"tunnel_id": "t"}, "tools[0].tunnel_id", "unsupported_parameter", "no tunnels"
    ),
    Wrong(
        "a command",
        {"command": "npx", "args": []},
        "tools[0].command",
        "unsupported_parameter",
        "stdio",
    ),
    Wrong(
        "filter of a wrong type",
        {"allowed_tools": "echo"},
        "tools[0].allowed_tools",
        "invalid_type",
        "array of tool names",
    ),
    Wrong(
        "name of a wrong type",
        {"allowed_tools": {"tool_names": [1]}},
        "tools[0].allowed_tools.tool_names[0]",
        "invalid_type",
        "a string",
    ),
    Wrong(
        "approval by a wrong word",
        {"require_approval": "sometimes"},
        "tools[0].require_approval",
        "invalid_value",
        "'always' and 'never'",
    ),
    Wrong(
        "approval of a wrong type",
        {"require_approval": True},
        "tools[0].require_approval",
        "invalid_type",
        "an object with filters",
    ),
    Wrong(
        "a header that is no string",
        {"headers": {"a": 1}},
        "tools[0].headers.a",
        "invalid_type",
        "a string",
    ),
    Wrong(
        "a name that is no header",
        {"headers": {"a b": "c"}},
        "tools[0].headers",
        "invalid_value",
        "not the name",
    ),
    Wrong(
        "a line break in a header",
        {"headers": {"a": "secret\r\nb: c"}},
        "tools[0].headers.a",
        "invalid_value",
        "character",
    ),
    Wrong(
        "a line break in the token",
        {"authorization": "secret\n"},
        "tools[0].authorization",
        "invalid_value",
        "character",
    ),
    Wrong(
        "the transport's own header",
        {"headers": {"Mcp-Session-Id": "x"}},
        "tools[0].headers",
        "invalid_value",
        "sets this header itself",
    ),
    Wrong(
        "another host",
        {"headers": {"Host": "x"}},
        "tools[0].headers",
        "invalid_value",
        "sets this header itself",
    ),
    Wrong(
        "a header twice",
        {"headers": {"X": "1", "x": "2"}},
        "tools[0].headers",
        "invalid_value",
        "twice",
    ),
    Wrong(
        "two credentials",
        {"authorization": "secret", "headers": {"authorization": "secret"}},
        "tools[0].authorization",
        "mutually_exclusive_parameters",
        "not both",
    ),
    Wrong(
        "too large headers",
        {"headers": {"X": "y" * 20_000}},
        "tools[0].headers",
        "string_above_max_length",
        "too long",
    ),
    Wrong(
        "too many headers",
        {"headers": {f"x{n}": "y" for n in range(65)}},
        "tools[0].headers",
        "array_above_max_length",
        "too long",
    ),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_server_is_refused_with_its_place_and_without_its_secrets(case: Wrong) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed({**SERVER, **case.change})
    assert (refusal.value.param, refusal.value.code) == (case.param, case.code)
    assert case.words in refusal.value.message
    assert "secret" not in refusal.value.message


def test_two_servers_with_one_label_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="already an MCP server with the label 'files'"
    ) as refusal:
        parsed(SERVER, {"type": "function", "name": "f"}, SERVER)
    assert refusal.value.param == "tools[2].server_label"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "mcp", "server_label": "files"},
        {"type": "mcp", "server_label": "files", "name": "whatever"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "mcp", "server_label": "files"}],
        },
        "required",
    ],
)
def test_a_choice_may_name_a_server(choice: Any) -> None:
    assert parsed(SERVER, tool_choice=choice).parameters["tool_choice"] == choice


def test_a_choice_of_a_server_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'other' not found") as refusal:
        parsed(SERVER, tool_choice={"type": "mcp", "server_label": "other"})
    assert refusal.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("allowed", "visible"),
    [
        (None, {"read", "write"}),
        ([], set()),
        (["write"], {"write"}),
        ({}, {"read", "write"}),
        ({"tool_names": ["read", "other"]}, {"read"}),
        ({"read_only": True}, {"read"}),
        ({"read_only": False}, {"write"}),
        ({"tool_names": ["write"], "read_only": True}, set()),
    ],
)
def test_the_model_sees_only_allowed_tools(allowed: Any, visible: set[str]) -> None:
    tool = SERVER if allowed is None else {**SERVER, "allowed_tools": allowed}
    assert {
        name for name, hints in (("read", READS), ("write", {})) if is_allowed(tool, name, hints)
    } == visible


@pytest.mark.parametrize(
    ("policy", "need_approval"),
    [
        (None, {"read", "write"}),
        ("always", {"read", "write"}),
        ("never", set()),
        ({"never": {"tool_names": ["read"]}}, {"write"}),
        ({"never": {"read_only": True}}, {"write"}),
        ({"always": {"tool_names": ["write"]}}, {"read", "write"}),
        ({"always": {"tool_names": ["write"]}, "never": {"tool_names": ["read"]}}, {"write"}),
        (
            {"always": {"tool_names": ["read"]}, "never": {"tool_names": ["read"]}},
            {"read", "write"},
        ),
        ({"never": {}}, {"read", "write"}),
        ({}, {"read", "write"}),
    ],
)
def test_only_tools_that_the_policy_exempts_run_without_approval(
    policy: Any, need_approval: set[str]
) -> None:
    tool = SERVER if policy is None else {**SERVER, "require_approval": policy}
    assert {
        name
        for name, hints in (("read", READS), ("write", {}))
        if needs_approval(tool, name, hints)
    } == need_approval


def test_a_server_without_a_policy_gets_that_of_the_setting() -> None:
    chosen = {**SERVER, "server_label": "other", "require_approval": {"never": {}}}
    request = parsed(SERVER, chosen, {"type": "custom", "name": "c"})
    assert with_approvals(request, "always") is request
    never, kept, custom = with_approvals(request, "never").parameters["tools"]
    assert never == {**request.parameters["tools"][0], "require_approval": "never"}
    assert [kept, custom] == request.parameters["tools"][1:]


def test_only_a_tool_that_its_server_declares_harmless_may_be_repeated() -> None:
    assert is_repeatable({"readOnlyHint": True})
    assert is_repeatable({"idempotentHint": True})
    assert not is_repeatable({"readOnlyHint": False, "destructiveHint": False})
    assert not is_repeatable({"readOnlyHint": "yes"})


def test_an_approval_needs_its_request_before_it() -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_1"}
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    assert unmet_approvals([request, response]) == []
    assert unmet_approvals([response, request]) == ["mcpr_1"]
