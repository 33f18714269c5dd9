"""Conversations: which items they have at which time, in which order, and who may change them."""

import asyncio
from functools import partial
from typing import Any

import openai
import psycopg
import pytest

from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    fail,
    finish,
    hang,
    reply,
    status,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack
from tests.support.websocket_client import socket

UNKNOWN_ID = "conv_01a1fc89ade272e095a74eaedfc80911"
LOCKED = (
    "Another process is currently operating on this conversation. Please retry in a few seconds."
)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def user(content: str, **more: Any) -> JSON:
    return {"role": "user", "content": content, **more}


def call_output(call_id: str, output: str = "seen") -> JSON:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


async def new_conversation(api: Api, *items: JSON, **more: Any) -> str:
    """Creates a conversation with these items; returns its id."""
    created = await api.call("POST", "/conversations", {"items": list(items), **more})
    assert created.status == 200, created.raw
    return str(created.body["id"])


async def items_of(api: Api, conversation_id: str) -> list[JSON]:
    """Returns all its items, in order, read page by page."""
    items: list[JSON] = []
    after: dict[str, str] = {}
    while True:
        page = await api.call(
            "GET",
            f"/conversations/{conversation_id}/items",
            params={"order": "asc", "limit": "3", **after},
        )
        assert page.status == 200, page.raw
        assert page.body["object"] == "list"
        items += page.body["data"]
        if not page.body["has_more"]:
            return items
        after = {"after": page.body["last_id"]}


async def texts_of(api: Api, conversation_id: str) -> list[tuple[str, str]]:
    """Role and text of each message; type and call id of each other item."""
    return [
        (item["role"], "".join(part.get("text", "") for part in item["content"]))
        if item["type"] == "message"
        else (item["type"], item["call_id"])
        for item in await items_of(api, conversation_id)
    ]


async def add(api: Api, conversation_id: str, *items: JSON) -> HttpResponse:
    return await api.call("POST", f"/conversations/{conversation_id}/items", {"items": list(items)})


def last_messages(fake: FakeUpstream, model: str) -> list[tuple[str, Any]]:
    """Role and content of the messages that the upstream got last."""
    return [
        (message["role"], message.get("content"))
        for message in fake.requests_for(model)[-1].messages
    ]


# The object.


async def test_a_conversation_is_created_shown_changed_and_deleted(
    client: openai.AsyncOpenAI,
) -> None:
    created = await client.conversations.create(
        metadata={"topic": "tides"}, items=[{"type": "message", "role": "user", "content": "Hi."}]
    )
    assert (created.object, created.metadata) == ("conversation", {"topic": "tides"})
    assert created.id.startswith("conv_")
    assert (await client.conversations.retrieve(created.id)) == created
    changed = await client.conversations.update(created.id, metadata={"topic": "moons"})
    assert changed == created.model_copy(update={"metadata": {"topic": "moons"}})
    assert (await client.conversations.update(created.id, metadata=None)).metadata == {}
    deleted = await client.conversations.delete(created.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (
        created.id,
        "conversation.deleted",
        True,
    )
    for request in (
        client.conversations.retrieve(created.id),
        client.conversations.delete(created.id),
        client.conversations.items.create(created.id, items=[]),
    ):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            await request


async def test_items_are_normalised_listed_shown_and_removed(client: openai.AsyncOpenAI) -> None:
    created = await client.conversations.create()
    items: list[Any] = [
        {"role": "user", "content": "Plain words."},
        {
            "type": "message",
            "id": "msg_mine",
            "role": "assistant",
            "content": "Mine.",
            "phase": "final_answer",
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "seen"},
    ]
    added = await client.conversations.items.create(created.id, items=items)
    ids = [str(item.id) for item in added.data]
    assert (added.first_id, added.last_id, added.has_more) == (ids[0], ids[-1], False)
    assert ids[1:3] == ["msg_mine", "rs_1"]
    assert [item_id.partition("_")[0] for item_id in ids] == ["msg", "msg", "rs", "fc", "fco"]
    listed = [
        item async for item in client.conversations.items.list(created.id, limit=2, order="asc")
    ]
    assert [item.id for item in listed] == ids
    assert [item.to_dict() for item in listed] == [item.to_dict() for item in added.data]
    assert [item.id async for item in client.conversations.items.list(created.id, limit=2)] == ids[
        ::-1
    ]
    first: Any = await client.conversations.items.retrieve(ids[0], conversation_id=created.id)
    assert first.to_dict()["content"] == [{"type": "input_text", "text": "Plain words."}]
    assert await client.conversations.items.delete(ids[0], conversation_id=created.id) == created
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(ids[0], conversation_id=created.id)
    assert [
        item.id async for item in client.conversations.items.list(created.id, order="asc")
    ] == ids[1:]


async def test_an_empty_conversation_lists_nothing(api: Api) -> None:
    page = await api.call("GET", f"/conversations/{await new_conversation(api)}/items")
    assert page.body == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


# Responses in a conversation.


async def test_a_conversation_is_sent_to_the_model_and_grows(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(
        api, user("one"), {"role": "assistant", "content": "two"}
    )
    model = fake.script(reply("four"))
    response = await api.create(model, input="three", conversation=conversation_id)
    assert response["conversation"] == {"id": conversation_id}
    assert (await api.get(response["id"])) == response
    assert last_messages(fake, model) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert await texts_of(api, conversation_id) == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
        ("assistant", "four"),
    ]
    items = await items_of(api, conversation_id)
    assert items[3] == response["output"][0]
    later = fake.script(reply("six"))
    ended = await api.wait_for_end(
        await api.create_background(later, input="five", conversation={"id": conversation_id})
    )
    assert ended["conversation"] == {"id": conversation_id}
    assert last_messages(fake, later)[-2:] == [("assistant", "four"), ("user", "five")]
    listed = (await api.call("GET", f"/responses/{ended['id']}/input_items")).body["data"]
    assert [item["content"][0]["text"] for item in listed] == ["five"], (
        "a response's input items are only its own"
    )


async def test_every_snapshot_names_the_conversation(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api)
    async with api.post_stream(
        fake.script(reply("x")), conversation=conversation_id, background=True
    ) as stream:
        events = await stream.to_end()
    snapshots = [event["response"] for event in events if "response" in event]
    assert len(snapshots) == 4
    assert all(snapshot["conversation"] == {"id": conversation_id} for snapshot in snapshots)


@pytest.mark.parametrize(
    ("script", "status", "is_added"),
    [
        ([text("half"), finish("length"), done()], "incomplete", True),
        ([text("half"), fail()], "failed", False),
        ([status(418)], "failed", False),
    ],
    ids=["incomplete", "failed with output", "failed without output"],
)
async def test_only_a_completed_or_incomplete_response_is_added(
    api: Api, fake: FakeUpstream, script: Any, status: str, is_added: bool
) -> None:
    conversation_id = await new_conversation(api, user("before"))
    response = await api.wait_for_end(
        await api.create_background(
            fake.script(script), input="question", conversation=conversation_id
        )
    )
    assert response["status"] == status
    assert await texts_of(api, conversation_id) == [
        ("user", "before"),
        *([("user", "question"), ("assistant", "half")] if is_added else []),
    ]
    model = fake.script(reply("fine"))
    assert (await api.create(model, input="again", conversation=conversation_id))[
        "status"
    ] == "completed", "the conversation is not locked"


async def test_a_cancelled_response_is_not_added(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api, user("before"))
    async with api.post_stream(
        fake.script([text("half"), hang()]), conversation=conversation_id, background=True
    ) as stream:
        await stream.until("response.output_text.delta")
        assert (await api.cancel(stream.response_id)).body["status"] == "cancelled"
    assert await texts_of(api, conversation_id) == [("user", "before")]
    assert (await api.create(fake.script(reply("x")), conversation=conversation_id))[
        "status"
    ] == "completed"


async def test_a_response_with_store_false_only_reads_the_conversation(
    api: Api, fake: FakeUpstream
) -> None:
    conversation_id = await new_conversation(api, user("before"))
    model = fake.script(reply("x"))
    response = await api.create(model, input="question", conversation=conversation_id, store=False)
    assert response["conversation"] == {"id": conversation_id}
    assert last_messages(fake, model) == [("user", "before"), ("user", "question")]
    assert await texts_of(api, conversation_id) == [("user", "before")]


async def test_an_input_may_be_empty_with_a_conversation(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api, user("Say x."))
    model = fake.script(reply("x"))
    assert (await api.create(model, input=[], conversation=conversation_id))["output_text"] == "x"
    assert last_messages(fake, model) == [("user", "Say x.")]


async def test_an_unfetchable_file_in_the_conversation_names_the_conversation(
    api: Api, fake: FakeUpstream
) -> None:
    part = {"type": "input_file", "file_url": "http://localhost:9/inside.pdf"}
    conversation_id = await new_conversation(api, {"role": "user", "content": [part]})
    refused = await api.call(
        "POST",
        "/responses",
        {
            "model": fake.script(reply("never")),
            "input": "Read it.",
            "conversation": conversation_id,
        },
    )
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "conversation",
        "invalid_value",
    )
    assert await texts_of(api, conversation_id) == [("user", "")]


async def test_a_conversation_continues_over_a_websocket(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api, user("one"))
    async with socket(api) as connection:
        first = await connection.create_and_read(
            fake.script(reply("three")), input="two", conversation=conversation_id
        )
        assert first["conversation"] == {"id": conversation_id}
        # A warm-up adds its input and gets no answer.
        await connection.create_and_read(
            "never", input="four", conversation=conversation_id, generate=False
        )
        model = fake.script(reply("six"))
        await connection.create_and_read(
            model, input="five", conversation=conversation_id, store=False
        )
    assert last_messages(fake, model) == [
        ("user", "one"),
        ("user", "two"),
        ("assistant", "three"),
        ("user", "four"),
        ("user", "five"),
    ]
    assert [text for _, text in await texts_of(api, conversation_id)] == [
        "one",
        "two",
        "three",
        "four",
    ]


# The lock.


async def test_a_running_response_locks_its_conversation(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api, user("before", id="msg_before"))
    released = asyncio.Event()
    running = await api.create_background(
        fake.script([wait_for(released), *reply("x")]), conversation=conversation_id
    )
    never = fake.script(reply("never"))
    for method, path, body in (
        ("POST", "/responses", {"model": never, "input": "y", "conversation": conversation_id}),
        (
            "POST",
            "/responses",
            {"model": never, "input": "y", "conversation": conversation_id, "store": False},
        ),
        ("POST", f"/conversations/{conversation_id}/items", {"items": [user("between")]}),
        ("DELETE", f"/conversations/{conversation_id}/items/msg_before", None),
        ("DELETE", f"/conversations/{conversation_id}", None),
    ):
        refused = await api.call(method, path, body)
        error = {
            "message": LOCKED,
            "type": "invalid_request_error",
            "param": "conversation",
            "code": "conversation_locked",
        }
        assert (refused.status, refused.error) == (400, error), (method, path)
    assert (
        await api.call("POST", f"/conversations/{conversation_id}", {"metadata": {"a": "b"}})
    ).status == 200, "metadata is not part of the history"
    released.set()
    await api.wait_for_end(running)
    assert fake.requests_for(never) == []
    assert (await add(api, conversation_id, user("after"))).status == 200
    assert [text for _, text in await texts_of(api, conversation_id)] == [
        "before",
        "Hello.",
        "x",
        "after",
    ]


async def test_of_many_concurrent_creates_one_is_accepted(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    conversation_id = await new_conversation(api)
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("x")])
    bodies = [
        {
            "model": model,
            "input": f"number {number}",
            "conversation": conversation_id,
            "background": True,
        }
        for number in range(12)
    ]
    answers = await asyncio.gather(
        *(
            (api, other)[number % 2].call("POST", "/responses", body)
            for number, body in enumerate(bodies)
        )
    )
    accepted = [answer.body["id"] for answer in answers if answer.status == 200]
    assert len(accepted) == 1
    assert {answer.error["code"] for answer in answers if answer.status != 200} == {
        "conversation_locked"
    }
    released.set()
    await api.wait_for_end(accepted[0])
    assert len(await items_of(api, conversation_id)) == 2


async def test_items_added_concurrently_are_all_stored_and_stay_together(
    shared_stack: Stack,
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    conversation_id = await new_conversation(api)
    pairs = [(user(f"a{number}"), user(f"b{number}")) for number in range(10)]
    answers = await asyncio.gather(
        *(
            add((api, other)[number % 2], conversation_id, *pair)
            for number, pair in enumerate(pairs)
        )
    )
    assert {answer.status for answer in answers} == {200}
    texts = [text for _, text in await texts_of(api, conversation_id)]
    assert sorted(texts) == sorted(f"{side}{number}" for number in range(10) for side in "ab")
    assert all(texts[number][1:] == texts[number + 1][1:] for number in range(0, 20, 2))


async def test_of_many_concurrent_adds_of_one_item_one_succeeds(shared_stack: Stack) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    conversation_id = await new_conversation(api)
    pairs = [(user("same", id="msg_same"), user(f"beside {number}")) for number in range(8)]
    answers = await asyncio.gather(
        *(
            add((api, other)[number % 2], conversation_id, *pair)
            for number, pair in enumerate(pairs)
        )
    )
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7
    assert (await texts_of(api, conversation_id))[0] == ("user", "same")
    assert len(await items_of(api, conversation_id)) == 2


async def test_of_a_concurrent_create_and_delete_exactly_one_succeeds(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    for _ in range(10):
        # Otherwise the response may have ended before the delete arrives.
        gate = asyncio.Event()
        model = fake.script([wait_for(gate), *reply("x")])
        conversation_id = await new_conversation(api, user("before"))
        body = {"model": model, "input": "y", "conversation": conversation_id, "background": True}
        created, deleted = await asyncio.gather(
            api.call("POST", "/responses", body),
            other.call("DELETE", f"/conversations/{conversation_id}"),
        )
        if deleted.status == 200:
            assert (created.status, created.error["param"], created.error["code"]) == (
                404,
                "conversation",
                "conversation_not_found",
            )
        else:
            assert deleted.error["code"] == "conversation_locked"
            gate.set()
            assert (await api.wait_for_end(created.body["id"]))["status"] == "completed"


# Calls.


async def test_a_call_needs_its_output_across_the_conversation(
    api: Api, fake: FakeUpstream
) -> None:
    conversation_id = await new_conversation(api)
    calling_model = fake.script(
        [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    )
    await api.create(calling_model, input="Look.", conversation=conversation_id, tools=TOOLS)
    never = fake.script(reply("never"))
    for input_value, message in (
        ("Well?", "No tool output found for function call call_a."),
        (
            [call_output("call_a"), call_output("call_b")],
            "No tool call found for function call output with call_id call_b.",
        ),
    ):
        refused = await api.call(
            "POST",
            "/responses",
            {"model": never, "input": input_value, "conversation": conversation_id},
        )
        assert (refused.status, refused.error["param"], refused.error["message"]) == (
            400,
            "input",
            message,
        )
    model = fake.script(reply("done"))
    await api.create(
        model, input=[call_output("call_a")], conversation=conversation_id, tools=TOOLS
    )
    assert [message["role"] for message in fake.requests_for(model)[0].messages] == [
        "user",
        "assistant",
        "tool",
    ]
    assert await texts_of(api, conversation_id) == [
        ("user", "Look."),
        ("function_call", "call_a"),
        ("function_call_output", "call_a"),
        ("assistant", "done"),
    ]
    assert (await api.create(fake.script(reply("x")), conversation=conversation_id))[
        "status"
    ] == "completed"


async def test_added_and_removed_calls_and_outputs_count(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(
        api,
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{}",
        },
    )
    model = fake.script(reply("x"))
    body = {"model": model, "input": "Well?", "conversation": conversation_id}
    missing_output = "No tool output found for function call call_1."
    assert (await api.call("POST", "/responses", body)).error["message"] == missing_output
    unmatched = await add(api, conversation_id, call_output("call_2"))
    assert (unmatched.status, unmatched.error["param"]) == (400, "items")
    assert (
        unmatched.error["message"]
        == "No tool call found for function call output with call_id call_2."
    )
    assert (await add(api, conversation_id, {**call_output("call_1"), "id": "fco_1"})).status == 200
    assert (await api.call("DELETE", f"/conversations/{conversation_id}/items/fco_1")).status == 200
    assert (await api.call("POST", "/responses", body)).error["message"] == missing_output
    assert (await add(api, conversation_id, {**call_output("call_1"), "id": "fco_2"})).status == 200
    assert (await api.call("POST", "/responses", body)).status == 200
    assert (await api.call("DELETE", f"/conversations/{conversation_id}/items/fc_1")).status == 200
    next_model = fake.script(reply("y"))
    assert (await api.call("POST", "/responses", body | {"model": next_model})).status == 200, (
        "an output without its call is left out"
    )
    assert [message["role"] for message in fake.requests_for(next_model)[0].messages] == [
        "user",
        "assistant",
        "user",
    ]


# References and repetitions.


async def test_items_of_a_conversation_can_be_referenced(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    conversation_id = await new_conversation(api, user("remember", id="msg_to_remember"))
    reference = {"type": "item_reference", "id": "msg_to_remember"}
    model = fake.script(reply("x"))
    await api.create(model, input=[reference, user("go on")])
    assert last_messages(fake, model) == [("user", "remember"), ("user", "go on")]
    other = await new_conversation(api, reference)
    assert await texts_of(api, other) == [("user", "remember")]
    assert (
        (await add(api, conversation_id, reference))
        .error["message"]
        .startswith("Duplicate item found with id msg_to_remember.")
    )
    other_project_api = shared_stack.api(key=keys.create(shared_stack.dsn, "another project"))
    refused = await other_project_api.call(
        "POST", "/conversations", {"items": [user("x"), reference]}
    )
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "items[1]",
        "item_not_found",
    )


async def test_an_item_is_in_a_conversation_only_once(api: Api, fake: FakeUpstream) -> None:
    conversation_id = await new_conversation(api, user("one", id="msg_one"))
    for refused, param in (
        (await add(api, conversation_id, user("two"), user("one", id="msg_one")), "items"),
        (
            await api.call(
                "POST",
                "/responses",
                {
                    "model": "of-duplicates",
                    "input": [user("one", id="msg_one")],
                    "conversation": conversation_id,
                },
            ),
            "input",
        ),
    ):
        assert (refused.status, refused.error["param"], refused.error["code"]) == (
            400,
            param,
            "invalid_value",
        )
        assert refused.error["message"].startswith("Duplicate item found with id msg_one.")
    assert await texts_of(api, conversation_id) == [("user", "one")]
    assert fake.requests_for("of-duplicates") == []


@pytest.mark.parametrize("mode", [{"background": True}, {}], ids=["background", "foreground"])
async def test_a_repeated_create_returns_the_first_response(
    api: Api, fake: FakeUpstream, mode: JSON
) -> None:
    conversation_id = await new_conversation(api)
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("x")])
    body = {
        "model": model,
        "input": [user("once", id=f"msg_{model}")],
        "conversation": conversation_id,
        **mode,
    }
    headers = {"idempotency-key": f"k-{model}"}
    first = asyncio.create_task(api.call("POST", "/responses", body, headers=headers))
    await until(lambda: fake.requests_for(model))
    repeated = asyncio.create_task(api.call("POST", "/responses", body, headers=headers))
    released.set()
    ids = {(await first).body["id"], (await repeated).body["id"]}
    await api.wait_for_end(next(iter(ids)))
    repeated_later = await api.call("POST", "/responses", body, headers=headers)
    assert repeated_later.status == 200, "the item is in the conversation now"
    assert {repeated_later.body["id"]} == ids
    assert len(await items_of(api, conversation_id)) == 2
    assert len(fake.requests_for(model)) == 1


# What belongs to a response and what to a conversation.


async def item_rows(stack: Stack, item_id: str) -> int:
    """Counts the rows of items with this item id."""
    async with await psycopg.AsyncConnection.connect(stack.dsn, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM items WHERE item_id = %s", (item_id,)
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


async def test_deleting_a_response_keeps_its_items_in_the_conversation(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    conversation_id = await new_conversation(api)
    response = await api.create(
        fake.script(reply("two")), input="one", conversation=conversation_id
    )
    failed = await api.wait_for_end(
        await api.create_background(
            fake.script([text("half"), fail()]),
            input=[user("no", id="msg_of_a_failed_one")],
            conversation=conversation_id,
        )
    )
    for deleted in (response, failed):
        assert (await api.call("DELETE", f"/responses/{deleted['id']}")).status == 200
        assert (await api.call("GET", f"/responses/{deleted['id']}")).status == 404
    assert await texts_of(api, conversation_id) == [("user", "one"), ("assistant", "two")]
    assert await item_rows(shared_stack, "msg_of_a_failed_one") == 0
    model = fake.script(reply("four"))
    await api.create(model, input="three", conversation=conversation_id)
    assert last_messages(fake, model) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert (await api.call("DELETE", f"/conversations/{conversation_id}")).status == 200
    assert await item_rows(shared_stack, response["output"][0]["id"]) == 0, "nothing refers to it"


async def test_deleting_a_conversation_keeps_the_items_of_its_responses(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    conversation_id = await new_conversation(api, user("before", id="msg_only_there"))
    response = await api.create(
        fake.script(reply("two")), input="one", conversation=conversation_id
    )
    assert (await api.call("DELETE", f"/conversations/{conversation_id}")).status == 200
    assert await api.get(response["id"]) == response, "it still names its conversation"
    listed = (await api.call("GET", f"/responses/{response['id']}/input_items")).body["data"]
    assert [item["content"][0]["text"] for item in listed] == ["one"]
    assert await item_rows(shared_stack, "msg_only_there") == 0
    refused = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "conversation": conversation_id}
    )
    assert (refused.status, refused.error["param"]) == (404, "conversation")
    refused = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "previous_response_id": response["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found"), (
        "its history was deleted"
    )


async def test_an_item_removed_from_a_conversation_stays_with_its_response(
    api: Api, fake: FakeUpstream
) -> None:
    conversation_id = await new_conversation(api)
    response = await api.create(
        fake.script(reply("two")), input="one", conversation=conversation_id
    )
    deleted = await api.call(
        "DELETE", f"/conversations/{conversation_id}/items/{response['output'][0]['id']}"
    )
    assert deleted.body["id"] == conversation_id
    assert await texts_of(api, conversation_id) == [("user", "one")]
    assert await api.get(response["id"]) == response


async def test_a_response_of_a_conversation_can_be_continued_by_its_id(
    api: Api, fake: FakeUpstream
) -> None:
    conversation_id = await new_conversation(api, user("zero"))
    response = await api.create(
        fake.script(reply("two")), input="one", conversation=conversation_id
    )
    await add(api, conversation_id, user("later"))
    model = fake.script(reply("four"))
    continued = await api.create(model, input="three", previous_response_id=response["id"])
    assert "conversation" not in continued
    assert last_messages(fake, model) == [
        ("user", "zero"),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    assert [text for _, text in await texts_of(api, conversation_id)] == [
        "zero",
        "one",
        "two",
        "later",
    ]


async def test_concurrent_deletes_leave_no_rows_behind_and_lose_none(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """A response, one of its items and their conversation, deleted at the same time."""
    api, other = shared_stack.api(), shared_stack.api(1)
    model = fake.script(reply("two"))
    for number in range(12):
        conversation_id = await new_conversation(api, user("zero", id=f"msg_zero_{number}"))
        response = await api.create(
            model, input=[user("one", id=f"msg_one_{number}_{model}")], conversation=conversation_id
        )
        item = response["output"][0]["id"]
        paths = [
            f"/responses/{response['id']}",
            f"/conversations/{conversation_id}/items/{item}",
            f"/conversations/{conversation_id}",
        ][: 2 + number % 2]
        answers = await asyncio.gather(
            *(
                client.call("DELETE", path)
                for client, path in zip((api, other, api), paths, strict=False)
            )
        )
        assert {answer.status for answer in answers} <= {200, 404}, [
            answer.raw for answer in answers
        ]
        assert answers[0].status == 200
        if len(paths) == 2:
            assert [text for _, text in await texts_of(api, conversation_id)] == ["zero", "one"]
            assert (await api.call("DELETE", f"/conversations/{conversation_id}")).status == 200
        assert (await api.call("GET", f"/conversations/{conversation_id}")).status == 404
        assert [
            await item_rows(shared_stack, item_id)
            for item_id in (item, f"msg_zero_{number}", f"msg_one_{number}_{model}")
        ] == [0, 0, 0]


async def test_an_ending_and_a_delete_of_its_response_leave_the_conversation_unlocked(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    conversation_id = await new_conversation(api)
    for _ in range(8):
        released = asyncio.Event()
        model = fake.script([wait_for(released), *reply("x")])
        running = await api.create_background(model, conversation=conversation_id)
        await until(partial(fake.requests_for, model))
        released.set()
        assert (await other.call("DELETE", f"/responses/{running}")).status == 200
    assert (await api.create(fake.script(reply("y")), input="last", conversation=conversation_id))[
        "status"
    ] == "completed"
    texts = [text for _, text in await texts_of(api, conversation_id)]
    assert texts[-2:] == ["last", "y"]
    assert texts[:-2] == ["Hello.", "x"] * ((len(texts) - 2) // 2), "whole turns or none"


# Other projects.


async def test_another_projects_conversation_looks_like_an_unknown_one(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    conversation_id = await new_conversation(shared_stack.api(), user("secret", id="msg_secret"))
    other_project_api = shared_stack.api(key=keys.create(shared_stack.dsn, "one more project"))
    for method, path, body in (
        ("GET", "/conversations/{}", None),
        ("POST", "/conversations/{}", {"metadata": {"a": "b"}}),
        ("DELETE", "/conversations/{}", None),
        ("GET", "/conversations/{}/items", None),
        ("POST", "/conversations/{}/items", {"items": [user("x")]}),
        ("GET", "/conversations/{}/items/msg_secret", None),
        ("DELETE", "/conversations/{}/items/msg_secret", None),
        ("POST", "/responses", {"model": "m", "input": "x", "conversation": "{}"}),
    ):
        answers = []
        for name in (conversation_id, UNKNOWN_ID):
            filled_body = (
                {key: name if value == "{}" else value for key, value in body.items()}
                if body is not None
                else None
            )
            refused = await other_project_api.call(method, path.format(name), filled_body)
            assert refused.status == 404, (method, path, refused.raw)
            answers.append(refused.raw.replace(name.encode(), b""))
        assert answers[0] == answers[1]
    assert await texts_of(shared_stack.api(), conversation_id) == [("user", "secret")]
