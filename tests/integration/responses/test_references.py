"""`item_reference`: the project's own stored items by their ids (docs/wire.md)."""

from typing import Any

import pytest

from tests.support import keys
from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
)
from tests.support.stack import Stack

TOOLS: list[JSON] = [{"type": "function", "name": "look"}, {"type": "custom", "name": "sh"}]
CALL_TURN: list[Step] = [
    text("Let me see."),
    call(0, "call_a", "look", "{}"),
    call(1, "call_b", "sh", '{"input":"ls"}'),
    finish(),
    done(),
]


def reference(item_id: str, **more: Any) -> JSON:
    return {"type": "item_reference", "id": item_id, **more}


async def error_of(api: Api, fake: FakeUpstream, *items: JSON) -> JSON:
    """Returns the error for this input; checks that the model was not called."""
    model = fake.script(reply("never"))
    answer = await api.call("POST", "/responses", {"model": model, "input": list(items)})
    assert answer.status == 400, answer.raw
    assert fake.requests_for(model) == []
    return answer.error


async def test_output_and_input_items_can_be_referenced(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply("Bonn.")), input="Capital?")
    input_items = (await api.call("GET", f"/responses/{first['id']}/input_items")).body["data"]
    model = fake.script(reply("Sure."))
    items = [
        reference(input_items[0]["id"]),
        {"id": first["output"][0]["id"], "type": None},
        {"role": "user", "content": "Sure?"},
    ]
    second = await api.create(model, input=items)
    assert [
        (message["role"], message["content"]) for message in fake.requests_for(model)[0].messages
    ] == [
        ("user", "Capital?"),
        ("assistant", "Bonn."),
        ("user", "Sure?"),
    ]
    listed = (await api.call("GET", f"/responses/{second['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert listed[:2] == [input_items[0], first["output"][0]]
    third = await api.wait_for_end(
        await api.create_background(
            fake.script(reply("Again.")), input=[reference(input_items[0]["id"])]
        )
    )
    assert third["status"] == "completed"


async def test_calls_can_be_referenced_and_answered(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script([*CALL_TURN, usage()]), tools=TOOLS)
    message, look, shell = first["output"]
    outputs = [
        {"type": "function_call_output", "call_id": "call_a", "output": "seen"},
        {"type": "custom_tool_call_output", "call_id": "call_b", "output": "files"},
    ]
    model = fake.script(reply("Done."))
    await api.create(
        model, input=[*(reference(item["id"]) for item in (message, look, shell)), *outputs]
    )
    assistant, *tool_messages = fake.requests_for(model)[0].messages
    assert assistant["content"] == "Let me see."
    assert [call_entry["function"] for call_entry in assistant["tool_calls"]] == [
        {"name": "look", "arguments": "{}"},
        {"name": "sh", "arguments": '{"input":"ls"}'},
    ]
    assert [
        (tool_message["tool_call_id"], tool_message["content"]) for tool_message in tool_messages
    ] == [
        ("call_a", "seen"),
        ("call_b", "files"),
    ]
    error = await error_of(api, fake, reference(look["id"]))
    assert error["message"] == "No tool output found for function call call_a."


async def test_an_unknown_id_is_refused_with_its_position(
    api: Api, shared_stack: Stack, fake: FakeUpstream
) -> None:
    unstored = await api.create(fake.script(reply("x")), store=False)
    deleted = await api.create(fake.script(reply("x")))
    await api.call("DELETE", f"/responses/{deleted['id']}")
    of_other_project = await shared_stack.api(
        key=keys.create(shared_stack.dsn, "referenced")
    ).create(fake.script(reply("x")))
    for item_id in (
        "msg_never",
        unstored["output"][0]["id"],
        deleted["output"][0]["id"],
        of_other_project["output"][0]["id"],
        of_other_project["id"],
        "a b",
        "é",
    ):
        error = await error_of(api, fake, {"role": "user", "content": "x"}, reference(item_id))
        assert error == {
            "message": (
                f"Item with id '{item_id}' not found. Items of responses created with"
                " 'store': false cannot be referred to."
            ),
            "type": "invalid_request_error",
            "param": "input[1]",
            "code": "item_not_found",
        }


async def test_of_several_items_with_one_id_the_newest_is_used(
    api: Api, shared_stack: Stack, fake: FakeUpstream
) -> None:
    other_project_api = shared_stack.api(key=keys.create(shared_stack.dsn, "same ids"))
    for client, content in ((api, "old"), (api, "new"), (other_project_api, "theirs")):
        await client.create(
            fake.script(reply("x")), input=[{"id": "msg_mine", "role": "user", "content": content}]
        )
    model = fake.script(reply("x"))
    await api.create(model, input=[reference("msg_mine")])
    assert [message["content"] for message in fake.requests_for(model)[0].messages] == ["new"]


async def test_items_of_a_running_foreground_response_cannot_be_referenced(
    api: Api, fake: FakeUpstream
) -> None:
    async with api.post_stream(
        fake.script([text("x"), hang()]),
        input=[{"id": "msg_early", "role": "user", "content": "x"}],
    ) as stream:
        await stream.until("response.output_text.delta")
        assert (await error_of(api, fake, reference("msg_early")))["code"] == "item_not_found"


async def test_one_item_twice_is_refused(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply("x")))
    item = first["output"][0]
    for items in ([reference(item["id"])] * 2, [item, reference(item["id"])]):
        assert (await error_of(api, fake, *items))["message"].startswith(
            f"Duplicate item found with id {item['id']}."
        )


async def test_references_cannot_exceed_the_limit_of_a_body(api: Api, fake: FakeUpstream) -> None:
    """Two megabytes each; together at most four, the limit of a body (set in tests/conftest.py)."""
    ids = []
    for number in range(3):
        item = {"id": f"msg_large_{number}", "role": "user", "content": "x" * 2_000_000}
        ids.append(item["id"])
        await api.create(fake.script(reply("x")), input=[item])
    error = await error_of(api, fake, *map(reference, ids))
    assert (error["param"], error["code"]) == ("input", "input_too_large")
    assert (await api.create(fake.script(reply("x")), input=[reference(ids[0])]))[
        "status"
    ] == "completed"


@pytest.mark.parametrize("background", [False, True])
async def test_a_reference_can_be_used_in_a_chain(
    api: Api, fake: FakeUpstream, background: bool
) -> None:
    other = await api.create(fake.script(reply("From elsewhere.")))
    first = await api.create(fake.script(reply("One.")), input="1")
    model = fake.script(reply("Two."))
    items = [reference(other["output"][0]["id"]), {"role": "user", "content": "2"}]
    second = await api.create(
        model, input=items, previous_response_id=first["id"], background=background
    )
    assert (await api.wait_for_end(second["id"]))["status"] == "completed"
    contents = [message["content"] for message in fake.requests_for(model)[0].messages]
    assert contents == ["1", "One.\n\nFrom elsewhere.", "2"]
