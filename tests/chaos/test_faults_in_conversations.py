"""Conversations while things break: each item once, whatever died when, and never locked for ever."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.chaos.proxy import Proxy
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

SETTINGS = {
    "BACKBURNER_LEASE__BEAT": "0.5",
    "BACKBURNER_LEASE__SWEEP": "0.5",
    "BACKBURNER_LEASE__RING_INTERVAL": "1",
}
both_kinds = pytest.mark.parametrize("kind", ["done", "never"])


async def room(api: Api, *words: str) -> str:
    """A conversation in which the user has said this."""
    made = await api.call(
        "POST", "/conversations", {"items": [{"role": "user", "content": one} for one in words]}
    )
    assert made.status == 200, made.raw
    return str(made.body["id"])


async def said(api: Api, named: str) -> list[str]:
    """Its texts and calls, in order."""
    page = await api.call("GET", f"/conversations/{named}/items?limit=100&order=asc")
    assert page.status == 200, page.raw
    return [item.get("call_id") or item["content"][0]["text"] for item in page.body["data"]]


async def test_a_worker_dies_in_a_conversation_and_it_holds_each_item_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as one:
        api = one.api()
        named = await room(api, "before")
        asking = [
            text("Let me see."),
            call(0, "call_a", "look", "{}"),
            finish("tool_calls"),
            usage(),
            done(),
        ]
        model = fake.script([text("half"), hang()], asking)
        async with api.post_stream(
            model, conversation=named, input="question", background=True
        ) as stream:
            await stream.until("response.output_text.delta")
            one.kill(one.workers[0])
            assert await said(one.api(1), named) == ["before"], (
                "nothing of a response that is not over"
            )
            refused = await one.api(1).call(
                "POST",
                f"/conversations/{named}/items",
                {"items": [{"role": "user", "content": "between"}]},
            )
            assert refused.error["code"] == "conversation_locked"
            one.spawn_worker()
            await stream.to_end()
        assert stream.final["status"] == "completed"
        assert await said(api, named) == ["before", "question", "Let me see.", "call_a"]
        assert [request.messages for request in fake.requests_for(model)] == [
            [{"role": "user", "content": words} for words in ("before", "question")]
        ] * 2
        answer: JSON = {"type": "function_call_output", "call_id": "call_a", "output": "seen"}
        assert (await api.create(fake.script(reply("after")), conversation=named, input=[answer]))[
            "status"
        ] == "completed"
        assert await said(api, named) == [
            "before",
            "question",
            "Let me see.",
            "call_a",
            "call_a",
            "after",
        ]
        count = await one.value("SELECT count(*) FROM items WHERE conversation_id IS NOT NULL")
        assert count == 6


async def test_a_foreground_clients_web_process_dies_and_the_conversation_is_free_again(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as one:
        named = await room(one.api(1), "before")
        model = fake.script([text("half"), hang()])
        lost = asyncio.ensure_future(one.api(0).create(model, conversation=named))
        await until(lambda: fake.requests_for(model))
        one.kill(one.webs[0])
        await asyncio.gather(lost, return_exceptions=True)
        later = fake.script(reply("after"))

        async def accepted() -> bool:
            body = {"model": later, "input": "again", "conversation": named}
            return (await one.api().call("POST", "/responses", body)).status == 200

        await until(accepted, 20, every=0.3)
        assert await said(one.api(), named) == ["before", "again", "after"]


# --- answers of Postgres that never come ---


@pytest.fixture(scope="module")
async def product(
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
        settings=SETTINGS,
        proxied=True,
        allowed_tracebacks=("psycopg.",),
    ) as one:
        yield one
    RUNNING_STACKS.remove(one)


def lose(proxy: Proxy, words: bytes, kind: str) -> None:
    """The next statement with these words gets no answer."""
    if kind == "done":
        proxy.hold_answer(words).lose()
    else:
        proxy.drop_request(words)


@both_kinds
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k-{}"}], ids=["", "with a key"])
async def test_an_unclear_create_is_made_once(
    product: Stack, fake: FakeUpstream, headers: dict[str, str], kind: str
) -> None:
    api = product.api()
    named = await room(api)
    opened = asyncio.Event()
    model = fake.script([wait_for(opened), *reply("once")])
    lose(product.webs[0].proxies.postgres, b"INSERT INTO responses", kind)
    body = {"model": model, "input": "x", "conversation": named, "background": True}
    keys = {name: value.format(model) for name, value in headers.items()}
    made = await api.call("POST", "/responses", body, headers=keys)
    assert made.status == 200, made.raw
    opened.set()
    assert (await api.wait_for_end(made.body["id"]))["output_text"] == "once"
    assert await said(api, named) == ["x", "once"]
    assert len(fake.requests_for(model)) == 1


@both_kinds
async def test_an_unclear_end_adds_what_was_said_once(
    product: Stack, fake: FakeUpstream, kind: str
) -> None:
    api = product.api()
    named = await room(api)
    lose(product.workers[0].proxies.postgres, b"SET status = 'completed'", kind)
    assert (
        await api.wait_for_end(
            await api.create_background(fake.script(reply("y")), input="x", conversation=named)
        )
    )["status"] == "completed"
    assert await said(api, named) == ["x", "y"]
    assert (
        await product.value(
            "SELECT revision FROM conversations WHERE id = %s::uuid", named.removeprefix("conv_")
        )
        == 2
    )


@both_kinds
async def test_items_that_are_added_without_an_answer_are_there_once(
    product: Stack, kind: str
) -> None:
    api = product.api()
    named = await room(api, "before")
    lose(product.webs[0].proxies.postgres, b"INSERT INTO items", kind)
    added = await api.call(
        "POST", f"/conversations/{named}/items", {"items": [{"role": "user", "content": "after"}]}
    )
    assert (added.status, added.body["data"][0]["content"][0]["text"]) == (200, "after")
    assert await said(api, named) == ["before", "after"]


@both_kinds
async def test_a_conversation_is_made_once(product: Stack, kind: str) -> None:
    api = product.api()
    before = await product.value("SELECT count(*) FROM conversations")
    lose(product.webs[0].proxies.postgres, b"INSERT INTO conversations", kind)
    assert await said(api, await room(api, "first")) == ["first"]
    assert await product.value("SELECT count(*) FROM conversations") == before + 1


@both_kinds
async def test_an_unclear_deletion_is_a_deletion(product: Stack, kind: str) -> None:
    api = product.api()
    named = await room(api, "one", "two")
    first = (await api.call("GET", f"/conversations/{named}/items?order=asc&limit=1")).body[
        "first_id"
    ]
    lose(product.webs[0].proxies.postgres, b"RETURNING i.id", kind)
    dropped = await api.call("DELETE", f"/conversations/{named}/items/{first}")
    assert (dropped.status, dropped.body["id"]) == (200, named)
    assert await said(api, named) == ["two"]
    lose(product.webs[0].proxies.postgres, b"DELETE FROM conversations", kind)
    gone = await api.call("DELETE", f"/conversations/{named}")
    assert (gone.status, gone.body["deleted"]) == (200, True)
    assert (await api.call("GET", f"/conversations/{named}")).status == 404
