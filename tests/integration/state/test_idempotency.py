"""The same POST again starts no second job."""

import asyncio
import json

import pytest

from models import keys
from models.wire.events import split_frames
from tests.support.api import JSON, Api, HttpResponse, decode, until
from tests.support.fake_upstream import FakeUpstream, hang, reply, text, wait_for
from tests.support.stack import Stack

KEYED = {"idempotency-key": "one-and-only"}


async def _post(api: Api, body: JSON, **headers: str) -> HttpResponse:
    return await api.call("POST", "/responses", {"input": "Hello.", **body}, headers=headers)


async def test_the_same_key_and_body_get_the_first_response_as_json_and_as_it_is_now(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once"))
    body = {"model": model, "background": True}
    first = await _post(api, body, **KEYED)
    ended = await api.wait_for_end(first.body["id"])
    second = await _post(api, dict(reversed(body.items())), **KEYED)
    assert (second.status, second.body) == (200, ended)
    assert len(fake.requests_for(model)) == 1


async def test_the_same_key_and_body_get_the_first_stream_byte_for_byte(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("a ", "stream"))
    body = {"model": model, "background": True, "stream": True}
    first, second = (
        await _post(api, body, **{"idempotency-key": "s"}),
        await _post(api, body, **{"idempotency-key": "s"}),
    )
    assert first.raw == second.raw
    assert first.raw.endswith(b"data: [DONE]\n\n")
    assert len(fake.requests_for(model)) == 1


async def test_a_repeated_foreground_request_waits_for_the_first_ones_answer(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    go = asyncio.Event()
    model = fake.script([wait_for(go), *reply("slowly")])
    asked = [
        asyncio.create_task(
            _post(shared_stack.api(web), {"model": model}, **{"idempotency-key": "f"})
        )
        for web in (0, 1)
    ]
    await until(lambda: fake.requests_for(model))
    go.set()
    first, second = await asyncio.gather(*asked)
    assert first.status == second.status == 200
    assert first.body == second.body
    assert len(fake.requests_for(model)) == 1


async def test_the_same_key_with_another_body_is_refused_and_starts_nothing(
    api: Api, fake: FakeUpstream
) -> None:
    model, other = fake.script(reply("x")), fake.script(reply("y"))
    headers = {"idempotency-key": "differs"}
    await _post(api, {"model": model, "background": True}, **headers)
    refused = await _post(api, {"model": other, "background": True}, **headers)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (
        400,
        "idempotency_key_reused",
        "Idempotency-Key",
    )
    assert fake.requests_for(other) == []


async def test_many_equal_requests_at_one_instant_make_one_response(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"))
    answers = await asyncio.gather(
        *(
            _post(
                shared_stack.api(number % 2),
                {"model": model, "background": True},
                **{"idempotency-key": "crowd"},
            )
            for number in range(20)
        )
    )
    assert {answer.status for answer in answers} == {200}
    [response_id] = {answer.body["id"] for answer in answers}
    await shared_stack.api().wait_for_end(response_id)
    assert len(fake.requests_for(model)) == 1


async def test_another_projects_equal_key_is_another_key(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("mine"), reply("theirs"))
    stranger = shared_stack.api(key=keys.create(shared_stack.dsn, "idempotent stranger"))
    headers = {"idempotency-key": "common"}
    mine, theirs = [
        await _post(one, {"model": model, "background": True}, **headers)
        for one in (shared_stack.api(), stranger)
    ]
    assert mine.body["id"] != theirs.body["id"]


async def test_the_sdks_retry_of_a_create_finds_its_first_try(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("sdk"), reply("again"))
    body = {"model": model, "background": True}
    first = await _post(api, body, **{"x-stainless-retry-count": "0"})
    retried = await _post(api, body, **{"x-stainless-retry-count": "1"})
    assert retried.body["id"] == first.body["id"]


async def test_two_first_tries_are_two_responses_and_a_retry_belongs_to_the_later(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("a"), reply("b"))
    body = {"model": model, "background": True}
    first, second = [await _post(api, body, **{"x-stainless-retry-count": "0"}) for _ in range(2)]
    retried = await _post(api, body, **{"x-stainless-retry-count": "2"})
    assert first.body["id"] != second.body["id"] == retried.body["id"]


async def test_a_response_cancelled_because_its_client_left_satisfies_no_retry(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("lost"), hang()], reply("kept"))
    body = json.dumps({"model": model, "input": "Hello.", "stream": True}).encode()
    headers = {
        "authorization": f"Bearer {api.key}",
        "content-type": "application/json",
        "idempotency-key": "left",
    }
    async with api.session.post(f"{api.base_url}/responses", data=body, headers=headers) as answer:
        await answer.content.readuntil(b"response.output_text.delta")
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None)
    again = await api.call("POST", "/responses", body, headers={"idempotency-key": "left"})
    last = decode(split_frames(again.raw)[-2])
    assert last["type"] == "response.completed"
    assert last["response"]["output_text"] == "kept"


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_without_or_with_too_many_characters_is_refused(
    api: Api, fake: FakeUpstream, key: str
) -> None:
    refused = await _post(api, {"model": fake.script(reply("x"))}, **{"idempotency-key": key})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "Idempotency-Key",
        "invalid_value",
    )
