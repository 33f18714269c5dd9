"""A cancel ends a response at once (I10), and a delete cancels first."""

import asyncio

import pytest

from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    hang,
    reasoning,
    reply,
    silence_until,
    text,
)
from tests.support.process_logs import line_of
from tests.support.stack import Stack
from tests.support.strict_types import check_event, check_response


async def test_a_cancel_from_any_web_process_ends_a_running_response(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([reasoning("hm"), text("so ", "far"), hang()])
    async with shared_stack.api(0).post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta", count=2)
        cancelled = await shared_stack.api(1).cancel(stream.response_id)
        assert cancelled.status == 200
        assert cancelled.body["status"] == "cancelled"
        events = await stream.to_end()
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None)
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    assert events[-1]["type"] == "response.failed"
    assert [item["status"] for item in stream.final["output"]] == ["completed", "incomplete"]
    assert stream.final["output_text"] == "so far"
    assert stream.final["error"] is None
    assert cancelled.body == stream.final == await shared_stack.api(0).get(stream.response_id)


async def test_the_upstream_socket_is_closed_when_cancel_answers(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        await api.cancel(stream.response_id)
        [request] = fake.requests_for(model)
        await until(lambda: request.closed_by_client is not None, 1)


async def test_a_response_that_waits_for_its_first_token_is_cancelled(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([silence_until(asyncio.Event())])
    response_id = await api.create_background(model)
    await until(lambda: fake.requests_for(model))
    cancelled = await api.cancel(response_id)
    assert (cancelled.status, cancelled.body["status"], cancelled.body["output"]) == (
        200,
        "cancelled",
        [],
    )
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None)


async def test_a_second_cancel_returns_the_same_object(api: Api, fake: FakeUpstream) -> None:
    response_id = await api.create_background(fake.script([text("x"), hang()]))
    first = await api.cancel(response_id)
    second = await api.cancel(response_id)
    assert (first.status, second.status) == (200, 200)
    assert first.body == second.body == await api.get(response_id)
    check_response(first.body)


async def test_a_cancelled_function_call_is_left_incomplete(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([call(0, "call_1", "f", '{"a":'), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.function_call_arguments.delta")
        await api.cancel(stream.response_id)
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    [item] = stream.final["output"]
    assert (item["type"], item["status"], item["arguments"]) == (
        "function_call",
        "incomplete",
        '{"a":',
    )


async def test_a_queued_response_that_is_cancelled_never_starts(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(workers=0) as stack:
        api = stack.api()
        model = fake.script(reply("never"))
        response_id = await api.create_background(model)
        async with api.follow(response_id) as stream:
            await stream.until("response.queued")
            cancelled = await api.cancel(response_id)
            events = await stream.to_end()
        assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
        assert [event["type"] for event in events] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]
        assert_stream_obeys_contract(events)
        line = await line_of(stack.webs[0], "response_ended", response=response_id)
        assert (line["status"], line["reason"], line["attempts"]) == ("cancelled", "cancelled", 0)
        next_model = fake.script(reply("after"))
        other = await api.create_background(next_model)
        await stack.start_worker()
        assert (await api.wait_for_end(other))["status"] == "completed"
        assert (await api.get(response_id)) == cancelled.body
        assert fake.requests_for(model) == []


async def test_a_deleted_running_response_is_cancelled_first(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        deleted = await api.call("DELETE", f"/responses/{stream.response_id}")
        assert deleted.status == 200
        assert deleted.body == {"id": stream.response_id, "object": "response", "deleted": True}
        await stream.to_end()
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None)
    for method, suffix in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("POST", "/cancel"),
        ("DELETE", ""),
        ("GET", "/input_items"),
    ):
        assert (await api.call(method, f"/responses/{stream.response_id}{suffix}")).status == 404


async def test_a_deleted_response_leaves_no_rows_behind(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    response_id = (
        await shared_stack.api().wait_for_end(
            await shared_stack.api().create_background(fake.script(reply("secret")))
        )
    )["id"]
    assert (await shared_stack.api().call("DELETE", f"/responses/{response_id}")).status == 200
    uuid = response_id.removeprefix("resp_")

    async def has_no_rows() -> bool:
        counts = [
            await shared_stack.value(
                f"SELECT count(*) FROM {table} WHERE {column} = %s::uuid", uuid
            )
            for table, column in (
                ("responses", "id"),
                ("items", "response_id"),
                ("event_log", "response_id"),
            )
        ]
        return counts == [0, 0, 0]

    await until(has_no_rows)


async def test_a_cancel_and_a_concurrent_ending_agree_on_one_outcome(
    api: Api, fake: FakeUpstream
) -> None:
    models = [fake.script(reply("quick")) for _ in range(20)]
    ids = [await api.create_background(model) for model in models]
    answers = await asyncio.gather(*(api.cancel(response_id) for response_id in ids))
    for response_id, answer in zip(ids, answers, strict=True):
        ended = await api.wait_for_end(response_id)
        last_event = (await _replayed(api, response_id))[-1]
        assert ended == last_event["response"]
        if answer.status == 200:
            assert ended == answer.body
            assert ended["status"] == "cancelled"
        else:
            assert answer.error["message"] == "Cannot cancel a completed response."
            assert ended["status"] == "completed"


@pytest.mark.parametrize("web", [0, 1])
async def test_a_cancelled_response_is_the_same_from_every_web_process(
    shared_stack: Stack, fake: FakeUpstream, web: int
) -> None:
    response_id = await shared_stack.api(web).create_background(fake.script([text("x"), hang()]))
    cancelled = await shared_stack.api(web).cancel(response_id)
    assert cancelled.body == await shared_stack.api(1 - web).get(response_id)


async def _replayed(api: Api, response_id: str) -> list[dict[str, dict[str, object]]]:
    async with api.follow(response_id) as stream:
        return await stream.to_end()
