"""The Responses checks of nomyo-router's own tests, against this product and a chat upstream.

Other test files cover its native upstreams and its cache.
"""

import asyncio
import re

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, until
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
from tests.support.stack import SHORT_LEASES
from tests.support.strict_types import check_response

OUR_ID = re.compile(r"(resp|msg|fc|rs)_[0-9a-f]{32}")


async def test_a_responses_request_becomes_a_chat_request_and_back(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello", " there."))
    response = await api.create(
        model,
        input="Hi.",
        instructions="Be kind.",
        temperature=0.5,
        max_output_tokens=50,
        metadata={"a": "b"},
    )
    check_response(response)
    assert (response["output_text"], response["metadata"]) == ("Hello there.", {"a": "b"})
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (11, 7)
    [request] = fake.requests_for(model)
    assert request.path == "/v1/chat/completions"
    assert request.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi."},
    ]
    assert (request.body["temperature"], request.body["max_completion_tokens"]) == (0.5, 50)


async def test_ids_are_made_here_and_not_taken_from_the_upstream(
    api: Api, fake: FakeUpstream
) -> None:
    """The call id stays the upstream's, because it comes back with the output."""
    model = fake.script(
        [
            text("Let me see."),
            call(0, "chatcmpl-tool-7", "look", "{}"),
            finish("tool_calls"),
            usage(),
            done(),
        ]
    )
    tool: JSON = {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {}},
    }
    async with api.post_stream(model, tools=[tool]) as stream:
        events = await stream.to_end()
    message, call_item = stream.final["output"]
    assert all(
        OUR_ID.fullmatch(item_id)
        for item_id in (stream.final["id"], message["id"], call_item["id"])
    )
    assert call_item["call_id"] == "chatcmpl-tool-7"
    assert {event["item_id"] for event in events if "item_id" in event} == {
        message["id"],
        call_item["id"],
    }
    assert {event["response"]["id"] for event in events if "response" in event} == {
        stream.response_id
    }
    assert b"chatcmpl-%x" % id(fake.requests_for(model)[0]) not in b"".join(stream.frames)


async def test_nothing_is_stored_upstream(api: Api, fake: FakeUpstream) -> None:
    """A response stored here is not stored at the upstream too."""
    model = fake.script(reply("ok"))
    for body in ({}, {"store": True}, {"store": False}, {"background": True}):
        response = await api.create(model, **body)
        if body.get("background"):
            await api.wait_for_end(response["id"])
    for request in fake.requests_for(model):
        assert not {"background", "previous_response_id", "conversation", "metadata"} & set(
            request.body
        )
        assert request.body.get("store", False) is False


async def test_a_chain_sends_the_earlier_messages_to_the_upstream(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("A first."), reply("A second."), reply("A third."))
    first = await api.create(model, input="One.")
    second = await api.create(model, input="Two.", previous_response_id=first["id"])
    third = await api.create(model, input="Three.", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    assert [
        (message["role"], message["content"]) for message in fake.requests_for(model)[-1].messages
    ] == [
        ("user", "One."),
        ("assistant", "A first."),
        ("user", "Two."),
        ("assistant", "A second."),
        ("user", "Three."),
    ]


async def test_a_response_with_store_false_can_be_neither_read_nor_continued(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"))
    response = await api.create(model, store=False)
    assert (await api.call("GET", f"/responses/{response['id']}")).status == 404
    answer = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": "On.", "previous_response_id": response["id"]},
    )
    assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


async def test_a_deleted_response_is_a_404_on_every_route(api: Api, fake: FakeUpstream) -> None:
    response_id = (await api.create(fake.script(reply("ok"))))["id"]
    deleted = await api.call("DELETE", f"/responses/{response_id}")
    assert (deleted.status, deleted.body) == (
        200,
        {"id": response_id, "object": "response", "deleted": True},
    )
    await _assert_unknown(api, response_id)


async def test_an_unknown_id_is_a_404_on_every_route(api: Api) -> None:
    await _assert_unknown(api, UNKNOWN_RESPONSE_ID)


async def _assert_unknown(api: Api, response_id: str) -> None:
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        answer = await api.call(method, f"/responses/{response_id}{path}")
        assert (answer.status, answer.error["type"]) == (404, "invalid_request_error"), (
            method,
            path,
        )
        assert response_id in answer.error["message"]


async def test_background_without_store_is_refused(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": "Go.", "background": True, "store": False}
    )
    assert (answer.status, answer.error["param"], answer.error["code"]) == (
        400,
        "background",
        "unsupported_parameter",
    )
    assert fake.requests_for(model) == []


async def test_a_background_response_goes_from_queued_to_completed(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("half"), wait_for(released), text(" whole"), finish(), usage(), done()]
    )
    created = await api.create(model, background=True)
    assert (created["status"], created["output"], created["usage"]) == ("queued", [], None)

    async def running() -> bool:
        return bool((await api.get(created["id"]))["status"] == "in_progress")

    await until(running)
    released.set()
    ended = await api.wait_for_end(created["id"])
    assert (ended["status"], ended["output_text"], ended["created_at"]) == (
        "completed",
        "half whole",
        created["created_at"],
    )
    check_response(ended)


async def test_orphans_are_recovered_at_the_next_start(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """All processes are killed while two responses run and two wait; all four complete."""
    async with private_stack(streams=2, settings=SHORT_LEASES) as running:
        busy = [
            await running.api().create_background(
                fake.script([text("half"), hang()], reply(f"whole {number}"))
            )
            for number in range(2)
        ]
        await until(
            lambda: (
                sum(request.is_open and bool(request.sent_text) for request in fake.requests) >= 2
            )
        )
        waiting = [
            await running.api().create_background(fake.script(reply("after all"))) for _ in range(2)
        ]
        for process in [*running.webs, *running.workers]:
            running.kill(process)
        await running.start_web()
        running.spawn_worker()
        ended = [await running.api().wait_for_end(response_id) for response_id in [*busy, *waiting]]
        assert [response["status"] for response in ended] == ["completed"] * 4
        assert [response["output_text"] for response in ended] == [
            "whole 0",
            "whole 1",
            "after all",
            "after all",
        ]


@pytest.mark.long
async def test_orphans_past_their_deadline_fail_at_the_next_start(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        settings={**SHORT_LEASES, "BACKBURNER_LIMITS__WALL_CLOCK": "1"}
    ) as running:
        model = fake.script([text("half"), hang()])
        async with running.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            for process in [*running.webs, *running.workers]:
                running.kill(process)
        await running.start_web()
        running.spawn_worker()
        ended = await running.api().wait_for_end(stream.response_id)
        assert (ended["status"], ended["output_text"]) == ("failed", "half")
        assert "time" in ended["error"]["message"], ended["error"]
        assert len(fake.requests_for(model)) == 1
