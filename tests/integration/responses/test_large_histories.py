"""Histories and lists of items that would need more memory than a process has: nothing of them is
loaded. The deployment with tools allows histories of 12 MB (tests/conftest.py)."""

import asyncio

import pytest

from tests.support.api import JSON, Api, HttpResponse
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack
from tests.support.upstream_faults import memory_growth


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    return tool_stack.api()


LARGE = "x" * 3_500_000
"""A text that still fits into a body."""
PAGE = 8 * 1024 * 1024
"""The size of a page (web/responses/item_pages.py)."""


async def _conversation_of(api: Api, *texts: str) -> str:
    created = await api.call("POST", "/conversations", {})
    for text in texts:
        await _add(api, created.body["id"], [{"type": "input_text", "text": text}])
    return str(created.body["id"])


async def _add(api: Api, conversation: str, content: list[JSON]) -> None:
    items = [{"role": "user", "content": content}]
    added = await api.call("POST", f"/conversations/{conversation}/items", {"items": items})
    assert added.status == 200, added.raw


async def _page(api: Api, conversation: str, **params: str) -> HttpResponse:
    return await api.call(
        "GET",
        f"/conversations/{conversation}/items",
        params={"order": "asc", "limit": "100", **params},
    )


async def test_a_conversation_that_no_worker_may_load_is_refused(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    api = tool_stack.api()
    conversation = await _conversation_of(api, *[LARGE] * 4)
    body = {"model": fake.script(reply("x")), "input": "And?", "conversation": conversation}
    answers, growth = await memory_growth(
        tool_stack.workers,
        asyncio.gather(*(api.call("POST", "/responses", body) for _ in range(4))),
    )
    for answer in answers:
        assert (answer.status, answer.error["param"], answer.error["code"]) == (
            400,
            "conversation",
            "history_too_large",
        )
    assert growth < len(LARGE)


async def test_a_removed_item_makes_a_large_conversation_usable_again(
    api: Api, fake: FakeUpstream
) -> None:
    conversation = await _conversation_of(api, *[LARGE] * 4)
    first = (await _page(api, conversation)).body["first_id"]
    removed = await api.call("DELETE", f"/conversations/{conversation}/items/{first}")
    assert removed.status == 200
    response = await api.create(fake.script(reply("x")), conversation=conversation)
    assert response["status"] == "completed"


async def test_a_chain_that_has_grown_too_large_fails_and_is_then_refused(
    api: Api, fake: FakeUpstream
) -> None:
    model, previous = fake.script(reply("x")), None
    for _ in range(3):
        response = await api.create(model, input=LARGE, previous_response_id=previous)
        previous = response["id"]
    body = {"model": model, "input": LARGE, "previous_response_id": previous, "background": True}
    longest = await api.call("POST", "/responses", body)
    ended = await api.wait_for_end(longest.body["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "invalid_prompt")
    assert "larger than the limit of 12000000 bytes" in ended["error"]["message"]
    refused = await api.call("POST", "/responses", {**body, "background": False})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "previous_response_id",
        "history_too_large",
    )
    assert len(fake.requests_for(model)) == 3


async def test_a_list_of_large_items_comes_in_pages_that_fit_into_memory(api: Api) -> None:
    conversation = await _conversation_of(api, *[LARGE] * 3)
    first = await _page(api, conversation)
    assert (len(first.body["data"]), first.body["has_more"]) == (2, True)
    assert len(first.raw) < PAGE
    second = await _page(api, conversation, after=first.body["last_id"])
    assert (len(second.body["data"]), second.body["has_more"]) == (1, False)


async def test_an_item_that_is_larger_than_a_page_is_a_page(api: Api) -> None:
    """Its 80 000 parts count for more than their bytes: as objects they need that memory."""
    conversation = await _conversation_of(api)
    await _add(api, conversation, [{"type": "input_text", "text": ""}] * 80_000)
    await _add(api, conversation, [{"type": "input_text", "text": "small"}])
    page = await _page(api, conversation)
    assert (len(page.body["data"]), page.body["has_more"]) == (1, True)
    item = await api.call("GET", f"/conversations/{conversation}/items/{page.body['first_id']}")
    assert len(item.body["content"]) == 80_000
    rest = await _page(api, conversation, after=page.body["last_id"])
    assert (rest.body["data"][0]["content"][0]["text"], rest.body["has_more"]) == ("small", False)
