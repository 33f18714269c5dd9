"""The create that runs a response again."""

from typing import Any
from uuid import UUID

import pytest

from features.retry.body import retry_body
from models.db.queries.read import ResponseRow
from models.errors import InvalidRequest
from models.ids import conversation_id, response_id

PREVIOUS, CONVERSATION = UUID(int=1), UUID(int=2)
SERVER = {"type": "mcp", "server_label": "a", "server_url": "https://a.example"}
FUNCTION = {"type": "function", "name": "f"}
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "id": "msg_1", "role": "user", "content": []},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "x"},
]


def _row(**parameters: Any) -> ResponseRow:
    return ResponseRow(
        id=UUID(int=3),
        status="failed",
        model="demo",
        parameters=parameters,
        background=True,
        store=True,
        previous_response_id=PREVIOUS,
        conversation_id=CONVERSATION,
        usage=None,
        error=None,
        reason=None,
        service_tier=None,
        upstream_fields=None,
        failure=None,
        attempt=1,
        cache_key=None,
        cache_ttl=None,
        created_at=0,
        completed_at=None,
        retried_by=None,
    )


def test_it_is_the_stored_request_with_new_ids_where_a_conversation_may_have_the_old_ones() -> None:
    row = _row(temperature=0.5, retry_of="resp_0", stream_options={"include_obfuscation": True})
    assert retry_body(row, ITEMS, {"model": None}) == {
        "model": "demo",
        "background": True,
        "store": True,
        "temperature": 0.5,
        "previous_response_id": response_id(PREVIOUS),
        "conversation": conversation_id(CONVERSATION),
        "input": [
            {"type": "message", "role": "user", "content": []},
            ITEMS[1],
            {"type": "function_call_output", "call_id": "call_1", "output": "x"},
        ],
    }


def test_what_is_given_replaces_the_stored_value_and_only_servers_are_tools() -> None:
    stored = {**SERVER, "allowed_tools": ["x"]}
    secret = {**SERVER, "server_url": "https://a.example/key", "authorization": "token"}
    changes = {"model": "other", "background": False, "tools": [secret]}
    body = retry_body(_row(tools=[stored, FUNCTION]), (), changes)
    assert (body["model"], body["background"]) == ("other", False)
    assert body["tools"] == [{**secret, "allowed_tools": ["x"]}, FUNCTION]


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ([], None, None),
        ({"input": "x"}, "input", "unknown_parameter"),
        ({}, "tools", "mcp_credentials_required"),
        ({"tools": []}, "tools", "mcp_credentials_required"),
        ({"tools": [SERVER, FUNCTION]}, "tools[1]", "invalid_value"),
        ({"tools": [{**SERVER, "server_label": "b"}]}, "tools[0]", "invalid_value"),
        ({"tools": [{**SERVER, "server_label": []}]}, "tools[0]", "invalid_value"),
        ({"tools": ["a"]}, "tools[0]", "invalid_type"),
    ],
)
def test_what_a_retry_cannot_have_is_refused(
    changes: Any, param: str | None, code: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        retry_body(_row(tools=[SERVER]), ITEMS, changes)
    assert refused.value.param == param
    assert code is None or refused.value.code == code
