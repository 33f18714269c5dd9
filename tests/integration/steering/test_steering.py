"""Steering over HTTP: input that arrives while a background response runs is committed once, or
returned."""

import asyncio
import secrets
from typing import Any

import openai

from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.contract_rules import assert_stream_obeys_contract
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
from tests.support.stack import Stack
from tests.support.steering import held_reply, steers_of, user_message

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


async def _steer(api: Api, response: str, value: Any, **headers: str) -> JSON:
    answer = await api.call(
        "POST", f"/responses/{response}/steer", {"input": value}, headers=headers or None
    )
    assert answer.status == 200, answer.raw
    return answer.body


async def _refusal(api: Api, response: str, body: Any) -> tuple[int, str | None, str | None]:
    answer = await api.call("POST", f"/responses/{response}/steer", body)
    return answer.status, answer.error["code"], answer.error["param"]


async def _until_runs(fake: FakeUpstream, model: str) -> None:
    await until(lambda: fake.requests_for(model))


BAD_STEERS: dict[str, tuple[Any, str | None]] = {
    "nothing": ([], "input"),
    "a number": (1, "input"),
    "an assistant": ([{"role": "assistant", "content": "x"}], "input[0].role"),
    "no role": ([{"content": "x"}], "input[0].role"),
    "an output": (
        [{"type": "function_call_output", "call_id": "c", "output": "x", "role": "user"}],
        "input[0].call_id",
    ),
    "an id": ([{"role": "user", "content": "x", "id": "msg_1"}], "input[0].id"),
    "a part": (
        [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
        "input[0].content[0].type",
    ),
    "a private address": (
        [
            {
                "role": "user",
                "content": [{"type": "input_file", "file_url": "http://127.0.0.1/a.pdf"}],
            }
        ],
        "input[0].content[0].file_url",
    ),
}


async def test_what_is_no_steer_is_returned(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    response = await api.create_background(model)
    await _until_runs(fake, model)
    for name, (value, param) in BAD_STEERS.items():
        refusal = await _refusal(api, response, {"input": value})
        assert refusal == (400, "invalid_input", param), name
    assert await _refusal(api, response, {}) == (400, "missing_required_parameter", "input")
    unknown = {"input": "x", "stream_id": "a"}
    assert await _refusal(api, response, unknown) == (400, "unknown_parameter", "stream_id")
    await api.cancel(response)


async def test_a_background_response_is_steered_over_http(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    model = fake.script(held_reply(gate), reply("with both"))
    response = await api.create_background(model, instructions="Be brief.")
    await _until_runs(fake, model)
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    key = {"idempotency-key": secrets.token_hex(8)}
    first = await _steer(api, response, "One.", **key)
    assert await _steer(api, response, "One.", **key) == first
    assert (first["state"], first["input"]) == ("queued", "One.")
    second: Any = await client.post(
        f"/responses/{response}/steer",
        body={"input": [user_message([{"type": "input_text", "text": "Two."}, picture])]},
        cast_to=object,
    )
    assert [steer["id"] for steer in await steers_of(api, response)] == [first["id"], second["id"]]
    gate.set()
    ended = await api.wait_for_end(response)
    assert ended["status"] == "completed"
    steers = await steers_of(api, response)
    assert {steer["state"] for steer in steers} == {"committed"}
    [successor] = {steer["successor_response_id"] for steer in steers}
    final = await api.wait_for_end(successor)
    assert (final["output_text"], final["background"]) == ("with both", True)
    assert (final["instructions"], final["previous_response_id"]) == ("Be brief.", response)
    async with api.follow(successor) as stream:
        assert_stream_obeys_contract(await stream.to_end())
    messages = fake.requests_for(model)[1].messages
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user", "user"]
    assert await _refusal(api, response, {"input": "x"}) == (
        400,
        "response_already_completed",
        None,
    )


async def test_a_response_that_has_waited_is_steered_and_its_successor_waits_for_nothing(
    api: Api, fake: FakeUpstream
) -> None:
    begins, ends = asyncio.Event(), asyncio.Event()
    first_model, model = fake.script(held_reply(begins)), fake.script(held_reply(ends), reply("ok"))
    first = await api.create_background(first_model)
    options = {"completion_window": "2h", "continuation_id": "thread"}
    waiting = await api.create_background(
        model, previous_response_id=first, wait_for_previous=True, background_options=options
    )
    begins.set()
    await _until_runs(fake, model)
    await _steer(api, waiting, "Shorter.")
    ends.set()
    await api.wait_for_end(waiting)
    [steer] = await steers_of(api, waiting)
    final = await api.wait_for_end(steer["successor_response_id"])
    assert final["output_text"] == "ok"
    assert final["background_options"] == options
    assert "wait_for_previous" not in final


async def test_a_cancel_returns_what_was_queued(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    response = await api.create_background(model)
    await _until_runs(fake, model)
    await _steer(api, response, "Wait.")
    assert (await api.cancel(response)).body["status"] == "cancelled"
    [steer] = await steers_of(api, response)
    assert (steer["state"], steer["input"]) == ("failed", "Wait.")
    assert steer["error"]["code"] == "response_not_active"


async def test_what_cannot_be_steered(shared_stack: Stack, api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    response = await api.create_background(model)
    stranger = shared_stack.api(key=keys.create(shared_stack.dsn, "stranger"))
    body = {"input": "x"}
    for target in (response, "resp_" + "0" * 32, "nothing"):
        assert await _refusal(stranger, target, body) == (404, "response_not_found", None)
        listed = await stranger.call("GET", f"/responses/{target}/steer")
        assert (listed.status, listed.error["code"]) == (404, "response_not_found")
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    talking = await api.create_background(model, conversation=conversation)
    assert await _refusal(api, talking, body) == (400, "steering_not_supported", None)
    for _ in range(16):
        await _steer(api, response, "x")
    assert await _refusal(api, response, body) == (400, "too_many_pending_steers", "input")
    other = await api.create_background(model)
    large = {"input": "x" * 3_000_000}
    await _steer(api, other, large["input"])
    assert await _refusal(api, other, large) == (400, "too_many_pending_steers", "input")
    page = await api.call("GET", f"/responses/{response}/steer", params={"limit": "10"})
    assert (len(page.body["data"]), page.body["has_more"]) == (10, True)
    rest = await api.call(
        "GET", f"/responses/{response}/steer", params={"after": page.body["last_id"]}
    )
    assert (len(rest.body["data"]), rest.body["has_more"]) == (6, False)
    for running in (response, talking, other):
        await api.cancel(running)


async def test_two_creates_do_not_both_get_what_waits(api: Api, fake: FakeUpstream) -> None:
    gate = asyncio.Event()
    tool_call = call(0, "call_a", "look", "{}")
    model = fake.script(
        [tool_call, wait_for(gate), finish("tool_calls"), usage(), done()], reply("x")
    )
    first = await api.create_background(model, tools=[FUNCTION])
    await _until_runs(fake, model)
    await _steer(api, first, "Only once.")
    gate.set()
    await api.wait_for_end(first)
    output = [{"type": "function_call_output", "call_id": "call_a", "output": "42"}]
    more: JSON = {"input": output, "previous_response_id": first}
    created = await asyncio.gather(*(api.create_background(model, **more) for _ in range(4)))
    for one in created:
        await api.wait_for_end(one)
    texts = [request.body_text for request in fake.requests_for(model)[1:]]
    assert sum("Only once." in sent for sent in texts) == 1
    [steer] = await steers_of(api, first)
    assert steer["successor_response_id"] in created


async def test_a_response_with_automatic_compaction_cannot_be_steered(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    api = tool_stack.api()
    model = fake.script([text("x"), hang()])
    management = [{"type": "compaction", "compact_threshold": 1_000_000}]
    response = await api.create_background(model, context_management=management)
    assert await _refusal(api, response, {"input": "x"}) == (400, "steering_not_supported", None)
    await api.cancel(response)
