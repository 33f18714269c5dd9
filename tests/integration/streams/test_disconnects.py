"""What happens to a response when its client goes away: nothing to a background one, the end to a foreground one."""

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


async def _asked(fake: FakeUpstream, model: str) -> UpstreamRequest:
    """The one request for this model, once it has arrived."""
    await until(lambda: fake.requests_for(model))
    [request] = fake.requests_for(model)
    return request


async def _closed(request: UpstreamRequest, within: float = 10) -> None:
    await until(lambda: request.closed_by_client is not None, within)


async def test_a_background_stream_goes_on_without_its_reader(api: Api, fake: FakeUpstream) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), text("b"), finish(), usage(), done()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
    opened.set()
    ended = await api.wait_for_end(stream.response_id)
    assert ended["status"] == "completed"
    assert ended["output_text"] == "ab"
    [request] = fake.requests_for(model)
    assert request.closed_by_client is None


async def test_a_background_response_whose_client_leaves_at_once_still_runs(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("still here"))
    async with api.post_stream(model, background=True) as stream:
        await stream.next()
    assert (await api.wait_for_end(stream.response_id))["output_text"] == "still here"


@pytest.mark.parametrize("spoken", [True, False], ids=["mid-answer", "before the first token"])
async def test_a_foreground_stream_whose_client_leaves_is_cancelled(
    api: Api, fake: FakeUpstream, spoken: bool
) -> None:
    model = fake.script([text("so far"), hang()] if spoken else [silence_until(asyncio.Event())])
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta" if spoken else "response.created")
        request = await _asked(fake, model)
    await _closed(request)
    ended = await _found(api, stream.response_id)
    assert ended["status"] == "cancelled"
    assert ended["output_text"] == ("so far" if spoken else "")


async def test_a_foreground_request_whose_client_leaves_is_cancelled(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()])
    waiting = asyncio.create_task(api.create(model))
    request = await _asked(fake, model)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await _closed(request)


async def test_a_foreground_response_cannot_be_found_before_its_end(
    api: Api, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), finish(), usage(), done()])
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        path = f"/responses/{stream.response_id}"
        for method, rest in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
            ("GET", "/input_items"),
        ):
            assert (await api.call(method, path + rest)).status == 404, (method, rest)
        opened.set()
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


async def test_a_reader_that_leaves_disturbs_no_other(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), text(*"bcdefgh"), finish(), usage(), done()])
    response_id = await shared_stack.api().create_background(model)
    async with shared_stack.api(0).follow(response_id) as staying:
        await staying.until("response.output_text.delta")
        async with shared_stack.api(0).follow(response_id) as leaving:
            await leaving.until("response.output_text.delta")
        opened.set()
        await staying.to_end()
    assert_stream_obeys_contract([decode(frame) for frame in staying.frames])
    assert staying.final["output_text"] == "abcdefgh"


async def test_what_is_not_stored_is_gone_at_its_end(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("whisper"))
    response = await api.create(model, store=False)
    assert response["output_text"] == "whisper"
    assert response["store"] is False
    path = f"/responses/{response['id']}"
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert (await api.call(method, path + rest)).status == 404
    chained = await api.call(
        "POST", "/responses", {"model": model, "input": "x", "previous_response_id": response["id"]}
    )
    assert chained.status == 400
    assert chained.error["code"] == "previous_response_not_found"


async def _found(api: Api, response_id: str) -> dict[str, object]:
    """The foreground response once it has become visible."""

    async def found() -> dict[str, object] | None:
        answer = await api.call("GET", f"/responses/{response_id}")
        return answer.body if answer.status == 200 else None

    response = await until(found)
    assert response is not None
    return response
