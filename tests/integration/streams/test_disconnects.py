"""A client disconnects: a background response continues, a foreground response is cancelled."""

import asyncio

import pytest

from tests.support.api import Api, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    UpstreamRequest,
    done,
    finish,
    hang,
    reply,
    silence_until,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack


async def _request_arrived(fake: FakeUpstream, model: str) -> UpstreamRequest:
    """Returns the one request for this model when it has arrived."""
    await until(lambda: fake.requests_for(model))
    [request] = fake.requests_for(model)
    return request


async def _closed(request: UpstreamRequest, within: float = 10) -> None:
    await until(lambda: request.closed_by_client is not None, within)


async def test_a_background_response_continues_without_its_reader(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text("b"), finish(), usage(), done()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
    released.set()
    ended = await api.wait_for_end(stream.response_id)
    assert ended["status"] == "completed"
    assert ended["output_text"] == "ab"
    [request] = fake.requests_for(model)
    assert request.closed_by_client is None


async def test_a_background_response_runs_although_its_client_disconnects_at_once(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("still here"))
    async with api.post_stream(model, background=True) as stream:
        await stream.next()
    assert (await api.wait_for_end(stream.response_id))["output_text"] == "still here"


@pytest.mark.parametrize("has_output", [True, False], ids=["mid-answer", "before the first token"])
async def test_a_foreground_stream_is_cancelled_when_its_client_disconnects(
    api: Api, fake: FakeUpstream, has_output: bool
) -> None:
    model = fake.script(
        [text("so far"), hang()] if has_output else [silence_until(asyncio.Event())]
    )
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta" if has_output else "response.created")
        request = await _request_arrived(fake, model)
    await _closed(request)
    ended = await _visible_response(api, stream.response_id)
    assert ended["status"] == "cancelled"
    assert ended["output_text"] == ("so far" if has_output else "")


async def test_a_foreground_request_is_cancelled_when_its_client_disconnects(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()])
    waiting = asyncio.create_task(api.create(model))
    request = await _request_arrived(fake, model)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await _closed(request)


async def test_a_foreground_response_is_not_visible_before_its_end(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), finish(), usage(), done()])
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        path = f"/responses/{stream.response_id}"
        for method, suffix in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
            ("GET", "/input_items"),
        ):
            assert (await api.call(method, path + suffix)).status == 404, (method, suffix)
        released.set()
        assert (await stream.to_end())[-1]["type"] == "response.completed"
    assert (await api.get(stream.response_id)) == stream.final


async def test_a_foreground_response_starts_in_progress(api: Api, fake: FakeUpstream) -> None:
    async with api.post_stream(fake.script(reply("x"))) as stream:
        created = await stream.next()
        assert created is not None
        assert (created["type"], created["response"]["status"]) == (
            "response.created",
            "in_progress",
        )
        await stream.to_end()


async def test_a_reader_that_disconnects_does_not_disturb_others(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("a"), wait_for(released), text(*"bcdefgh"), finish(), usage(), done()]
    )
    response_id = await shared_stack.api().create_background(model)
    async with shared_stack.api(0).follow(response_id) as staying:
        await staying.until("response.output_text.delta")
        async with shared_stack.api(0).follow(response_id) as leaving:
            await leaving.until("response.output_text.delta")
        released.set()
        await staying.to_end()
    assert_stream_obeys_contract([decode(frame) for frame in staying.frames])
    assert staying.final["output_text"] == "abcdefgh"


async def test_a_response_with_store_false_cannot_be_read_after_its_end(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("whisper"))
    response = await api.create(model, store=False)
    assert response["output_text"] == "whisper"
    assert response["store"] is False
    path = f"/responses/{response['id']}"
    for method, suffix in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/input_items"),
    ):
        assert (await api.call(method, path + suffix)).status == 404
    chained = await api.call(
        "POST", "/responses", {"model": model, "input": "x", "previous_response_id": response["id"]}
    )
    assert chained.status == 400
    assert chained.error["code"] == "previous_response_not_found"


async def _visible_response(api: Api, response_id: str) -> dict[str, object]:
    """Returns the foreground response when it has become visible."""

    async def is_visible() -> dict[str, object] | None:
        answer = await api.call("GET", f"/responses/{response_id}")
        return answer.body if answer.status == 200 else None

    response = await until(is_visible)
    assert response is not None
    return response
