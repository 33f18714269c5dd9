"""Conversations: what is in them when, in which order, and who may change them."""

import asyncio
from functools import partial
from typing import Any

import openai
import psycopg
import pytest

from models import keys
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    drop,
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

NOWHERE = "conv_01a1fc89ade272e095a74eaedfc80911"
LOCKED = (
    "Another process is currently operating on this conversation. Please retry in a few seconds."
)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def user(words: str, **more: Any) -> JSON:
    return {"role": "user", "content": words, **more}


def answer(call_id: str, output: str = "seen") -> JSON:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


async def conversation(api: Api, *items: JSON, **more: Any) -> str:
    """A new conversation with these items; its id."""
    made = await api.call("POST", "/conversations", {"items": list(items), **more})
    assert made.status == 200, made.raw
    return str(made.body["id"])


async def items_of(api: Api, named: str) -> list[JSON]:
    """Its items, in order, page by page."""
    found: list[JSON] = []
    after: dict[str, str] = {}
    while True:
        page = await api.call(
            "GET", f"/conversations/{named}/items", params={"order": "asc", "limit": "3", **after}
        )
        assert page.status == 200, page.raw
        assert page.body["object"] == "list"
        found += page.body["data"]
        if not page.body["has_more"]:
            return found
        after = {"after": page.body["last_id"]}


async def said(api: Api, named: str) -> list[tuple[str, str]]:
    """Who said what in it; of other items, their type and call."""
    return [
        (item["role"], "".join(part.get("text", "") for part in item["content"]))
        if item["type"] == "message"
        else (item["type"], item["call_id"])
        for item in await items_of(api, named)
    ]


async def add(api: Api, named: str, *items: JSON) -> HttpResponse:
    return await api.call("POST", f"/conversations/{named}/items", {"items": list(items)})


def heard(fake: FakeUpstream, model: str) -> list[tuple[str, Any]]:
    """What the upstream was told, the last time."""
    return [
        (message["role"], message.get("content"))
        for message in fake.requests_for(model)[-1].messages
    ]


# The object.


async def test_a_conversation_is_made_shown_changed_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(
        metadata={"topic": "tides"}, items=[{"type": "message", "role": "user", "content": "Hi."}]
    )
    assert (made.object, made.metadata) == ("conversation", {"topic": "tides"})
    assert made.id.startswith("conv_")
    assert (await client.conversations.retrieve(made.id)) == made
    changed = await client.conversations.update(made.id, metadata={"topic": "moons"})
    assert changed == made.model_copy(update={"metadata": {"topic": "moons"}})
    assert (await client.conversations.update(made.id, metadata=None)).metadata == {}
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    for again in (
        client.conversations.retrieve(made.id),
        client.conversations.delete(made.id),
        client.conversations.items.create(made.id, items=[]),
    ):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            await again


async def test_items_are_normalised_listed_shown_and_taken_out(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    given: list[Any] = [
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
    added = await client.conversations.items.create(made.id, items=given)
    ids = [str(item.id) for item in added.data]
    assert (added.first_id, added.last_id, added.has_more) == (ids[0], ids[-1], False)
    assert ids[1:3] == ["msg_mine", "rs_1"]
    assert [name.partition("_")[0] for name in ids] == ["msg", "msg", "rs", "fc", "fco"]
    listed = [item async for item in client.conversations.items.list(made.id, limit=2, order="asc")]
    assert [item.id for item in listed] == ids
    assert [item.to_dict() for item in listed] == [item.to_dict() for item in added.data]
    assert [item.id async for item in client.conversations.items.list(made.id, limit=2)] == ids[
        ::-1
    ]
    first: Any = await client.conversations.items.retrieve(ids[0], conversation_id=made.id)
    assert first.to_dict()["content"] == [{"type": "input_text", "text": "Plain words."}]
    assert await client.conversations.items.delete(ids[0], conversation_id=made.id) == made
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(ids[0], conversation_id=made.id)
    assert [item.id async for item in client.conversations.items.list(made.id, order="asc")] == ids[
        1:
    ]


async def test_an_empty_conversation_lists_nothing(api: Api) -> None:
    page = await api.call("GET", f"/conversations/{await conversation(api)}/items")
    assert page.body == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


# Responses in it.


async def test_a_conversation_is_told_and_grows(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("one"), {"role": "assistant", "content": "two"})
    model = fake.script(reply("four"))
    response = await api.create(model, input="three", conversation=named)
    assert response["conversation"] == {"id": named}
    assert (await api.get(response["id"])) == response
    assert heard(fake, model) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert await said(api, named) == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
        ("assistant", "four"),
    ]
    items = await items_of(api, named)
    assert items[3] == response["output"][0]
    later = fake.script(reply("six"))
    ended = await api.wait_for_end(
        await api.create_background(later, input="five", conversation={"id": named})
    )
    assert ended["conversation"] == {"id": named}
    assert heard(fake, later)[-2:] == [("assistant", "four"), ("user", "five")]
    listed = (await api.call("GET", f"/responses/{ended['id']}/input_items")).body["data"]
    assert [item["content"][0]["text"] for item in listed] == ["five"], (
        "a response's input is its own"
    )


async def test_every_snapshot_names_the_conversation(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api)
    async with api.post_stream(
        fake.script(reply("x")), conversation=named, background=True
    ) as stream:
        events = await stream.to_end()
    snapshots = [event["response"] for event in events if "response" in event]
    assert len(snapshots) == 4
    assert all(snapshot["conversation"] == {"id": named} for snapshot in snapshots)


@pytest.mark.parametrize(
    ("script", "ended", "kept"),
    [
        ([text("half"), finish("length"), done()], "incomplete", True),
        ([text("half"), drop()], "failed", False),
        ([status(500)], "failed", False),
    ],
    ids=["incomplete", "failed with output", "failed without output"],
)
async def test_only_what_ended_well_becomes_part_of_it(
    api: Api, fake: FakeUpstream, script: Any, ended: str, kept: bool
) -> None:
    named = await conversation(api, user("before"))
    response = await api.wait_for_end(
        await api.create_background(fake.script(script), input="question", conversation=named)
    )
    assert response["status"] == ended
    assert await said(api, named) == [
        ("user", "before"),
        *([("user", "question"), ("assistant", "half")] if kept else []),
    ]
    model = fake.script(reply("fine"))
    assert (await api.create(model, input="again", conversation=named))["status"] == "completed", (
        "it is not locked"
    )


async def test_what_was_cancelled_is_no_part_of_it(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("before"))
    async with api.post_stream(
        fake.script([text("half"), hang()]), conversation=named, background=True
    ) as stream:
        await stream.until("response.output_text.delta")
        assert (await api.cancel(stream.response_id)).body["status"] == "cancelled"
    assert await said(api, named) == [("user", "before")]
    assert (await api.create(fake.script(reply("x")), conversation=named))["status"] == "completed"


async def test_a_response_that_is_not_stored_only_reads(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("before"))
    model = fake.script(reply("x"))
    response = await api.create(model, input="question", conversation=named, store=False)
    assert response["conversation"] == {"id": named}
    assert heard(fake, model) == [("user", "before"), ("user", "question")]
    assert await said(api, named) == [("user", "before")]


async def test_an_input_may_be_empty_where_there_is_a_conversation(
    api: Api, fake: FakeUpstream
) -> None:
    named = await conversation(api, user("Say x."))
    model = fake.script(reply("x"))
    assert (await api.create(model, input=[], conversation=named))["output_text"] == "x"
    assert heard(fake, model) == [("user", "Say x.")]


async def test_a_file_of_the_conversation_that_cannot_be_fetched_is_the_conversations_fault(
    api: Api, fake: FakeUpstream
) -> None:
    part = {"type": "input_file", "file_url": "http://localhost:9/inside.pdf"}
    named = await conversation(api, {"role": "user", "content": [part]})
    refused = await api.call(
        "POST",
        "/responses",
        {"model": fake.script(reply("never")), "input": "Read it.", "conversation": named},
    )
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "conversation",
        "invalid_value",
    )
    assert await said(api, named) == [("user", "")]


async def test_a_conversation_goes_on_over_a_socket(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("one"))
    async with socket(api) as one:
        first = await one.create_and_read(
            fake.script(reply("three")), input="two", conversation=named
        )
        assert first["conversation"] == {"id": named}
        await one.create_and_read(
            "never", input="four", conversation=named, generate=False
        )  # a warm-up: said, and not answered
        model = fake.script(reply("six"))
        await one.create_and_read(model, input="five", conversation=named, store=False)
    assert heard(fake, model) == [
        ("user", "one"),
        ("user", "two"),
        ("assistant", "three"),
        ("user", "four"),
        ("user", "five"),
    ]
    assert [words for _, words in await said(api, named)] == ["one", "two", "three", "four"]


# The lock.


async def test_nobody_else_writes_while_a_response_runs(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("before", id="msg_before"))
    opened = asyncio.Event()
    running = await api.create_background(
        fake.script([wait_for(opened), *reply("x")]), conversation=named
    )
    never = fake.script(reply("never"))
    for method, path, body in (
        ("POST", "/responses", {"model": never, "input": "y", "conversation": named}),
        (
            "POST",
            "/responses",
            {"model": never, "input": "y", "conversation": named, "store": False},
        ),
        ("POST", f"/conversations/{named}/items", {"items": [user("between")]}),
        ("DELETE", f"/conversations/{named}/items/msg_before", None),
        ("DELETE", f"/conversations/{named}", None),
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
        await api.call("POST", f"/conversations/{named}", {"metadata": {"a": "b"}})
    ).status == 200, "what it is called is nobody's history"
    opened.set()
    await api.wait_for_end(running)
    assert fake.requests_for(never) == []
    assert (await add(api, named, user("after"))).status == 200
    assert [words for _, words in await said(api, named)] == ["before", "Hello.", "x", "after"]


async def test_of_many_creates_at_once_one_is_first(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    named = await conversation(api)
    opened = asyncio.Event()
    model = fake.script([wait_for(opened), *reply("x")])
    bodies = [
        {"model": model, "input": f"number {at}", "conversation": named, "background": True}
        for at in range(12)
    ]
    answers = await asyncio.gather(
        *((api, other)[at % 2].call("POST", "/responses", body) for at, body in enumerate(bodies))
    )
    accepted = [one.body["id"] for one in answers if one.status == 200]
    assert len(accepted) == 1
    assert {one.error["code"] for one in answers if one.status != 200} == {"conversation_locked"}
    opened.set()
    await api.wait_for_end(accepted[0])
    assert len(await items_of(api, named)) == 2


async def test_items_that_are_added_at_once_are_all_there_and_stay_together(
    shared_stack: Stack,
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    named = await conversation(api)
    pairs = [(user(f"a{at}"), user(f"b{at}")) for at in range(10)]
    answers = await asyncio.gather(
        *(add((api, other)[at % 2], named, *pair) for at, pair in enumerate(pairs))
    )
    assert {one.status for one in answers} == {200}
    words = [words for _, words in await said(api, named)]
    assert sorted(words) == sorted(f"{side}{at}" for at in range(10) for side in "ab")
    assert all(words[at][1:] == words[at + 1][1:] for at in range(0, 20, 2))


async def test_of_many_that_add_the_same_item_at_once_one_does(shared_stack: Stack) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    named = await conversation(api)
    pairs = [(user("same", id="msg_same"), user(f"beside {at}")) for at in range(8)]
    answers = await asyncio.gather(
        *(add((api, other)[at % 2], named, *pair) for at, pair in enumerate(pairs))
    )
    assert sorted(one.status for one in answers) == [200] + [400] * 7
    assert (await said(api, named))[0] == ("user", "same")
    assert len(await items_of(api, named)) == 2


async def test_a_create_and_a_delete_at_once_leave_one_of_two_worlds(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    model = fake.script(reply("x"))
    for _ in range(10):
        named = await conversation(api, user("before"))
        body = {"model": model, "input": "y", "conversation": named, "background": True}
        made, gone = await asyncio.gather(
            api.call("POST", "/responses", body), other.call("DELETE", f"/conversations/{named}")
        )
        if gone.status == 200:
            assert (made.status, made.error["param"], made.error["code"]) == (
                404,
                "conversation",
                "conversation_not_found",
            )
        else:
            assert gone.error["code"] == "conversation_locked"
            assert (await api.wait_for_end(made.body["id"]))["status"] == "completed"


# Calls.


async def test_a_call_is_answered_across_the_conversation(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api)
    asking = fake.script([call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()])
    await api.create(asking, input="Look.", conversation=named, tools=TOOLS)
    never = fake.script(reply("never"))
    for given, message in (
        ("Well?", "No tool output found for function call call_a."),
        (
            [answer("call_a"), answer("call_b")],
            "No tool call found for function call output with call_id call_b.",
        ),
    ):
        refused = await api.call(
            "POST", "/responses", {"model": never, "input": given, "conversation": named}
        )
        assert (refused.status, refused.error["param"], refused.error["message"]) == (
            400,
            "input",
            message,
        )
    model = fake.script(reply("done"))
    await api.create(model, input=[answer("call_a")], conversation=named, tools=TOOLS)
    assert [message["role"] for message in fake.requests_for(model)[0].messages] == [
        "user",
        "assistant",
        "tool",
    ]
    assert await said(api, named) == [
        ("user", "Look."),
        ("function_call", "call_a"),
        ("function_call_output", "call_a"),
        ("assistant", "done"),
    ]
    assert (await api.create(fake.script(reply("x")), conversation=named))["status"] == "completed"


async def test_calls_and_outputs_that_are_added_or_taken_out_count(
    api: Api, fake: FakeUpstream
) -> None:
    named = await conversation(
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
    body = {"model": model, "input": "Well?", "conversation": named}
    unanswered = "No tool output found for function call call_1."
    assert (await api.call("POST", "/responses", body)).error["message"] == unanswered
    stray = await add(api, named, answer("call_2"))
    assert (stray.status, stray.error["param"]) == (400, "items")
    assert (
        stray.error["message"] == "No tool call found for function call output with call_id call_2."
    )
    assert (await add(api, named, {**answer("call_1"), "id": "fco_1"})).status == 200
    assert (await api.call("DELETE", f"/conversations/{named}/items/fco_1")).status == 200
    assert (await api.call("POST", "/responses", body)).error["message"] == unanswered
    assert (await add(api, named, {**answer("call_1"), "id": "fco_2"})).status == 200
    assert (await api.call("POST", "/responses", body)).status == 200
    assert (await api.call("DELETE", f"/conversations/{named}/items/fc_1")).status == 200
    again = fake.script(reply("y"))
    assert (await api.call("POST", "/responses", body | {"model": again})).status == 200, (
        "an output without its call is left out"
    )
    assert [message["role"] for message in fake.requests_for(again)[0].messages] == [
        "user",
        "assistant",
        "user",
    ]


# References and repetitions.


async def test_items_of_a_conversation_can_be_referred_to(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    named = await conversation(api, user("remember", id="msg_to_remember"))
    reference = {"type": "item_reference", "id": "msg_to_remember"}
    model = fake.script(reply("x"))
    await api.create(model, input=[reference, user("go on")])
    assert heard(fake, model) == [("user", "remember"), ("user", "go on")]
    other = await conversation(api, reference)
    assert await said(api, other) == [("user", "remember")]
    assert (
        (await add(api, named, reference))
        .error["message"]
        .startswith("Duplicate item found with id msg_to_remember.")
    )
    stranger = shared_stack.api(key=keys.create(shared_stack.dsn, "stranger to conversations"))
    refused = await stranger.call("POST", "/conversations", {"items": [user("x"), reference]})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "items[1]",
        "item_not_found",
    )


async def test_an_item_stands_in_a_conversation_once(api: Api, fake: FakeUpstream) -> None:
    named = await conversation(api, user("one", id="msg_one"))
    for refused, param in (
        (await add(api, named, user("two"), user("one", id="msg_one")), "items"),
        (
            await api.call(
                "POST",
                "/responses",
                {"model": "m", "input": [user("one", id="msg_one")], "conversation": named},
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
    assert await said(api, named) == [("user", "one")]
    assert fake.requests_for("m") == []


@pytest.mark.parametrize(
    "headers",
    [{"idempotency-key": "k-{}"}, {"x-stainless-retry-count": "1"}],
    ids=["key", "retry of the SDK"],
)
@pytest.mark.parametrize("way", [{"background": True}, {}], ids=["background", "foreground"])
async def test_a_create_that_comes_again_is_the_first_ones(
    api: Api, fake: FakeUpstream, headers: dict[str, str], way: JSON
) -> None:
    named = await conversation(api)
    opened = asyncio.Event()
    model = fake.script([wait_for(opened), *reply("x")])
    body = {
        "model": model,
        "input": [user("once", id=f"msg_{model}")],
        "conversation": named,
        **way,
    }
    headers = {name: value.format(model) for name, value in headers.items()}
    first = asyncio.create_task(api.call("POST", "/responses", body, headers=headers))
    await until(lambda: fake.requests_for(model))
    running = asyncio.create_task(api.call("POST", "/responses", body, headers=headers))
    opened.set()
    ids = {(await first).body["id"], (await running).body["id"]}
    await api.wait_for_end(next(iter(ids)))
    again = await api.call("POST", "/responses", body, headers=headers)
    assert again.status == 200, "the conversation has this item by now"
    assert {again.body["id"]} == ids
    assert len(await items_of(api, named)) == 2
    assert len(fake.requests_for(model)) == 1


# What belongs to whom.


async def stored(stack: Stack, named: str) -> int:
    """How many rows of items its project has that belong to this conversation or have the id of an item that did."""
    async with await psycopg.AsyncConnection.connect(stack.dsn, autocommit=True) as books:
        cursor = await books.execute("SELECT count(*) FROM items WHERE item_id = %s", (named,))
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


async def test_a_response_that_is_deleted_leaves_its_items_in_the_conversation(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    named = await conversation(api)
    response = await api.create(fake.script(reply("two")), input="one", conversation=named)
    failed = await api.wait_for_end(
        await api.create_background(
            fake.script([text("half"), drop()]),
            input=[user("no", id="msg_of_a_failed_one")],
            conversation=named,
        )
    )
    for one in (response, failed):
        assert (await api.call("DELETE", f"/responses/{one['id']}")).status == 200
        assert (await api.call("GET", f"/responses/{one['id']}")).status == 404
    assert await said(api, named) == [("user", "one"), ("assistant", "two")]
    assert await stored(shared_stack, "msg_of_a_failed_one") == 0
    model = fake.script(reply("four"))
    await api.create(model, input="three", conversation=named)
    assert heard(fake, model) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert (await api.call("DELETE", f"/conversations/{named}")).status == 200
    assert await stored(shared_stack, response["output"][0]["id"]) == 0, "nobody has it any more"


async def test_a_conversation_that_is_deleted_leaves_the_items_of_its_responses(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    named = await conversation(api, user("before", id="msg_only_there"))
    response = await api.create(fake.script(reply("two")), input="one", conversation=named)
    assert (await api.call("DELETE", f"/conversations/{named}")).status == 200
    assert await api.get(response["id"]) == response, "it still says where it was said"
    listed = (await api.call("GET", f"/responses/{response['id']}/input_items")).body["data"]
    assert [item["content"][0]["text"] for item in listed] == ["one"]
    assert await stored(shared_stack, "msg_only_there") == 0
    refused = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "conversation": named}
    )
    assert (refused.status, refused.error["param"]) == (404, "conversation")
    lost = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "previous_response_id": response["id"]}
    )
    assert (lost.status, lost.error["code"]) == (400, "previous_response_not_found"), (
        "what it went on from is gone"
    )


async def test_an_item_that_is_taken_out_stays_with_its_response(
    api: Api, fake: FakeUpstream
) -> None:
    named = await conversation(api)
    response = await api.create(fake.script(reply("two")), input="one", conversation=named)
    gone = await api.call("DELETE", f"/conversations/{named}/items/{response['output'][0]['id']}")
    assert gone.body["id"] == named
    assert await said(api, named) == [("user", "one")]
    assert await api.get(response["id"]) == response


async def test_a_response_of_a_conversation_may_be_continued_by_itself(
    api: Api, fake: FakeUpstream
) -> None:
    named = await conversation(api, user("zero"))
    response = await api.create(fake.script(reply("two")), input="one", conversation=named)
    await add(api, named, user("later"))
    model = fake.script(reply("four"))
    apart = await api.create(model, input="three", previous_response_id=response["id"])
    assert "conversation" not in apart
    assert heard(fake, model) == [
        ("user", "zero"),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    assert [words for _, words in await said(api, named)] == ["zero", "one", "two", "later"]


async def test_whoever_deletes_what_at_once_nothing_is_left_behind_or_lost(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """A response, an item of it, and their conversation, in every order that comes about."""
    api, other = shared_stack.api(), shared_stack.api(1)
    model = fake.script(reply("two"))
    for round_ in range(12):
        named = await conversation(api, user("zero", id=f"msg_zero_{round_}"))
        response = await api.create(
            model, input=[user("one", id=f"msg_one_{round_}_{model}")], conversation=named
        )
        item = response["output"][0]["id"]
        paths = [
            f"/responses/{response['id']}",
            f"/conversations/{named}/items/{item}",
            f"/conversations/{named}",
        ][: 2 + round_ % 2]
        answers = await asyncio.gather(
            *(
                side.call("DELETE", path)
                for side, path in zip((api, other, api), paths, strict=False)
            )
        )
        assert {one.status for one in answers} <= {200, 404}, [one.raw for one in answers]
        assert answers[0].status == 200
        if len(paths) == 2:
            assert [words for _, words in await said(api, named)] == ["zero", "one"]
            assert (await api.call("DELETE", f"/conversations/{named}")).status == 200
        assert (await api.call("GET", f"/conversations/{named}")).status == 404
        assert [
            await stored(shared_stack, one)
            for one in (item, f"msg_zero_{round_}", f"msg_one_{round_}_{model}")
        ] == [0, 0, 0]


async def test_an_end_and_a_deletion_of_its_response_at_once_lock_nothing(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, other = shared_stack.api(), shared_stack.api(1)
    named = await conversation(api)
    for _ in range(8):
        opened = asyncio.Event()
        model = fake.script([wait_for(opened), *reply("x")])
        running = await api.create_background(model, conversation=named)
        await until(partial(fake.requests_for, model))
        opened.set()
        assert (await other.call("DELETE", f"/responses/{running}")).status == 200
    assert (await api.create(fake.script(reply("y")), input="last", conversation=named))[
        "status"
    ] == "completed"
    words = [words for _, words in await said(api, named)]
    assert words[-2:] == ["last", "y"]
    assert words[:-2] == ["Hello.", "x"] * ((len(words) - 2) // 2), "whole turns or none"


# Strangers.


async def test_another_projects_conversation_is_none(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    named = await conversation(shared_stack.api(), user("secret", id="msg_secret"))
    stranger = shared_stack.api(key=keys.create(shared_stack.dsn, "another stranger"))
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
        told = []
        for name in (named, NOWHERE):
            filled = (
                {key: name if value == "{}" else value for key, value in body.items()}
                if body is not None
                else None
            )
            refused = await stranger.call(method, path.format(name), filled)
            assert refused.status == 404, (method, path, refused.raw)
            told.append(refused.raw.replace(name.encode(), b""))
        assert told[0] == told[1]
    assert await said(shared_stack.api(), named) == [("user", "secret")]
