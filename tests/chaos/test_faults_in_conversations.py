"""Conversations with faults: each item is stored once, and no conversation stays locked."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.chaos.lost_replies import FREQUENT_SWEEPS, both_kinds, lose_reply
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import RUNNING_STACKS, SHORT_LEASES, Databases, Stack, SuiteSettings, stack


async def new_conversation(api: Api, *texts: str) -> str:
    """Creates a conversation with these user messages; returns its id."""
    created = await api.call(
        "POST", "/conversations", {"items": [{"role": "user", "content": text} for text in texts]}
    )
    assert created.status == 200, created.raw
    return str(created.body["id"])


async def texts_of(api: Api, conversation_id: str) -> list[str]:
    """Its texts and call ids, in order."""
    page = await api.call("GET", f"/conversations/{conversation_id}/items?limit=100&order=asc")
    assert page.status == 200, page.raw
    return [item.get("call_id") or item["content"][0]["text"] for item in page.body["data"]]


@pytest.mark.long
async def test_after_a_worker_dies_a_conversation_has_each_item_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as running:
        api = running.api()
        conversation_id = await new_conversation(api, "before")
        call_turn = [
            text("Let me see."),
            call(0, "call_a", "look", "{}"),
            finish("tool_calls"),
            usage(),
            done(),
        ]
        model = fake.script([text("half"), hang()], call_turn)
        async with api.post_stream(
            model, conversation=conversation_id, input="question", background=True
        ) as stream:
            await stream.until("response.output_text.delta")
            running.kill(running.workers[0])
            assert await texts_of(running.api(1), conversation_id) == ["before"], (
                "items of an open response are shown"
            )
            refused = await running.api(1).call(
                "POST",
                f"/conversations/{conversation_id}/items",
                {"items": [{"role": "user", "content": "between"}]},
            )
            assert refused.error["code"] == "conversation_locked"
            running.spawn_worker()
            await stream.to_end()
        assert stream.final["status"] == "completed"
        assert await texts_of(api, conversation_id) == [
            "before",
            "question",
            "Let me see.",
            "call_a",
        ]
        assert [request.messages for request in fake.requests_for(model)] == [
            [{"role": "user", "content": text} for text in ("before", "question")]
        ] * 2
        output: JSON = {"type": "function_call_output", "call_id": "call_a", "output": "seen"}
        assert (
            await api.create(
                fake.script(reply("after")), conversation=conversation_id, input=[output]
            )
        )["status"] == "completed"
        assert await texts_of(api, conversation_id) == [
            "before",
            "question",
            "Let me see.",
            "call_a",
            "call_a",
            "after",
        ]
        count = await running.value("SELECT count(*) FROM items WHERE conversation_id IS NOT NULL")
        assert count == 6


async def test_after_its_web_process_dies_a_conversation_is_unlocked(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as running:
        conversation_id = await new_conversation(running.api(1), "before")
        model = fake.script([text("half"), hang()])
        request_task = asyncio.ensure_future(
            running.api(0).create(model, conversation=conversation_id)
        )
        await until(lambda: fake.requests_for(model))
        running.kill(running.webs[0])
        await asyncio.gather(request_task, return_exceptions=True)
        later = fake.script(reply("after"))

        async def is_accepted() -> bool:
            body = {"model": later, "input": "again", "conversation": conversation_id}
            return (await running.api().call("POST", "/responses", body)).status == 200

        await until(is_accepted, 20, every=0.3)
        assert await texts_of(running.api(), conversation_id) == ["before", "again", "after"]


# --- lost replies of PostgreSQL ---


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("unclear-conversations")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        settings=FREQUENT_SWEEPS,
        proxied=True,
        allowed_tracebacks=POSTGRES_TRACEBACKS,
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


@both_kinds
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k-{}"}], ids=["", "with a key"])
async def test_a_create_with_a_lost_reply_is_stored_once(
    own_stack: Stack, fake: FakeUpstream, headers: dict[str, str], kind: str
) -> None:
    api = own_stack.api()
    conversation_id = await new_conversation(api)
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("once")])
    lose_reply(own_stack.webs[0].proxies.postgres, b"INSERT INTO responses", kind)
    body = {"model": model, "input": "x", "conversation": conversation_id, "background": True}
    keys = {name: value.format(model) for name, value in headers.items()}
    created = await api.call("POST", "/responses", body, headers=keys)
    assert created.status == 200, created.raw
    released.set()
    assert (await api.wait_for_end(created.body["id"]))["output_text"] == "once"
    assert await texts_of(api, conversation_id) == ["x", "once"]
    assert len(fake.requests_for(model)) == 1


@both_kinds
async def test_an_ending_with_a_lost_reply_adds_its_items_once(
    own_stack: Stack, fake: FakeUpstream, kind: str
) -> None:
    api = own_stack.api()
    conversation_id = await new_conversation(api)
    lose_reply(own_stack.workers[0].proxies.postgres, b"SET status = 'completed'", kind)
    assert (
        await api.wait_for_end(
            await api.create_background(
                fake.script(reply("y")), input="x", conversation=conversation_id
            )
        )
    )["status"] == "completed"
    assert await texts_of(api, conversation_id) == ["x", "y"]
    assert (
        await own_stack.value(
            "SELECT revision FROM conversations WHERE id = %s::uuid",
            conversation_id.removeprefix("conv_"),
        )
        == 2
    )


@both_kinds
async def test_items_added_with_a_lost_reply_are_stored_once(own_stack: Stack, kind: str) -> None:
    api = own_stack.api()
    conversation_id = await new_conversation(api, "before")
    lose_reply(own_stack.webs[0].proxies.postgres, b"INSERT INTO items", kind)
    added = await api.call(
        "POST",
        f"/conversations/{conversation_id}/items",
        {"items": [{"role": "user", "content": "after"}]},
    )
    assert (added.status, added.body["data"][0]["content"][0]["text"]) == (200, "after")
    assert await texts_of(api, conversation_id) == ["before", "after"]


@both_kinds
async def test_a_conversation_with_a_lost_reply_is_created_once(
    own_stack: Stack, kind: str
) -> None:
    api = own_stack.api()
    before = await own_stack.value("SELECT count(*) FROM conversations")
    lose_reply(own_stack.webs[0].proxies.postgres, b"INSERT INTO conversations", kind)
    assert await texts_of(api, await new_conversation(api, "first")) == ["first"]
    assert await own_stack.value("SELECT count(*) FROM conversations") == before + 1


@both_kinds
async def test_a_delete_with_a_lost_reply_is_done(own_stack: Stack, kind: str) -> None:
    api = own_stack.api()
    conversation_id = await new_conversation(api, "one", "two")
    first = (
        await api.call("GET", f"/conversations/{conversation_id}/items?order=asc&limit=1")
    ).body["first_id"]
    lose_reply(own_stack.webs[0].proxies.postgres, b"RETURNING i.id", kind)
    item_deleted = await api.call("DELETE", f"/conversations/{conversation_id}/items/{first}")
    assert (item_deleted.status, item_deleted.body["id"]) == (200, conversation_id)
    assert await texts_of(api, conversation_id) == ["two"]
    lose_reply(own_stack.webs[0].proxies.postgres, b"DELETE FROM conversations", kind)
    deleted = await api.call("DELETE", f"/conversations/{conversation_id}")
    assert (deleted.status, deleted.body["deleted"]) == (200, True)
    assert (await api.call("GET", f"/conversations/{conversation_id}")).status == 404
