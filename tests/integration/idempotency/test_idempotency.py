"""A repeated POST starts no second response."""

import asyncio
import json

import psycopg
import pytest

from models.wire.events import split_frames
from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse, decode, until
from tests.support.fake_upstream import FakeUpstream, hang, reply, text, wait_for
from tests.support.stack import Stack

KEY_HEADERS = {"idempotency-key": "one-and-only"}


async def _post(api: Api, body: JSON, **headers: str) -> HttpResponse:
    return await api.call("POST", "/responses", {"input": "Hello.", **body}, headers=headers)


async def test_the_same_key_and_body_get_the_first_response_in_its_current_state(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once"))
    body = {"model": model, "background": True}
    first = await _post(api, body, **KEY_HEADERS)
    ended = await api.wait_for_end(first.body["id"])
    second = await _post(api, dict(reversed(body.items())), **KEY_HEADERS)
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


async def test_a_repeated_foreground_request_waits_for_the_answer_of_the_first(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("slowly")])
    tasks = [
        asyncio.create_task(
            _post(shared_stack.api(web), {"model": model}, **{"idempotency-key": "f"})
        )
        for web in (0, 1)
    ]
    await until(lambda: fake.requests_for(model))
    released.set()
    first, second = await asyncio.gather(*tasks)
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


async def test_many_concurrent_equal_requests_make_one_response(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"))
    answers = await asyncio.gather(
        *(
            _post(
                shared_stack.api(number % 2),
                {"model": model, "background": True},
                **{"idempotency-key": "many"},
            )
            for number in range(20)
        )
    )
    assert {answer.status for answer in answers} == {200}
    [response_id] = {answer.body["id"] for answer in answers}
    await shared_stack.api().wait_for_end(response_id)
    assert len(fake.requests_for(model)) == 1


async def test_the_same_key_of_another_project_is_another_key(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("mine"), reply("theirs"))
    other_project_api = shared_stack.api(key=keys.create(shared_stack.dsn, "idempotent other"))
    headers = {"idempotency-key": "common"}
    first, of_other_project = [
        await _post(client, {"model": model, "background": True}, **headers)
        for client in (shared_stack.api(), other_project_api)
    ]
    assert first.body["id"] != of_other_project.body["id"]


@pytest.mark.parametrize("stream", [False, True], ids=["waiting", "streaming"])
@pytest.mark.parametrize("web", [0, 1], ids=["same web process", "other web process"])
async def test_a_joined_response_outlives_the_first_connection_and_ends_with_the_last_one(
    shared_stack: Stack, fake: FakeUpstream, web: int, *, stream: bool
) -> None:
    model = fake.script([text("first"), hang()])
    body = {"model": model, "stream": stream}
    headers = {"idempotency-key": model}
    first = asyncio.create_task(_post(shared_stack.api(), body, **headers))
    await until(lambda: fake.requests_for(model))
    waiters = "SELECT waiter FROM responses WHERE model = %s"
    waiter = await shared_stack.value(waiters, model)
    second = asyncio.create_task(_post(shared_stack.api(web), body, **headers))

    async def is_joined() -> bool:
        return bool(await shared_stack.value(waiters, model) != waiter)

    await until(is_joined)
    await _close(first)
    [request] = fake.requests_for(model)
    with pytest.raises(AssertionError):  # half a second is long for a cancel
        await until(lambda: request.closed_by_client is not None, 0.5)
    assert not second.done()
    await _close(second)
    await until(lambda: request.closed_by_client is not None)
    status = "SELECT status FROM responses WHERE model = %s"

    async def is_cancelled() -> bool:
        return bool(await shared_stack.value(status, model) == "cancelled")

    await until(is_cancelled)


async def _close(request: asyncio.Task[HttpResponse]) -> None:
    """Closes the connection of a request that waits for its answer."""
    request.cancel()
    await asyncio.wait({request})


async def test_a_joined_response_answers_the_retry_after_the_first_connection_ended(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("for the retry")], reply("a second time"))
    headers = {"idempotency-key": model}
    first = asyncio.create_task(_post(shared_stack.api(0), {"model": model}, **headers))
    await until(lambda: fake.requests_for(model))
    waiters = "SELECT waiter FROM responses WHERE model = %s"
    waiter = await shared_stack.value(waiters, model)
    second = asyncio.create_task(_post(shared_stack.api(1), {"model": model}, **headers))

    async def is_joined() -> bool:
        return bool(await shared_stack.value(waiters, model) != waiter)

    await until(is_joined)
    await _close(first)
    released.set()
    assert (await second).body["output_text"] == "for the retry"
    assert len(fake.requests_for(model)) == 1


async def test_a_retry_of_the_sdk_is_not_given_the_response_of_an_equal_request(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """Neither one that another client waits for, nor one that was answered."""
    released = asyncio.Event()
    model = fake.script(reply("answered"), [wait_for(released), *reply("running")], reply("retry"))
    sdk, retry = {"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "1"}
    answered = await _post(shared_stack.api(), {"model": model}, **sdk)
    running = asyncio.create_task(_post(shared_stack.api(), {"model": model}, **sdk))
    await until(lambda: len(fake.requests_for(model)) == 2)
    retried = await _post(shared_stack.api(1), {"model": model}, **retry)
    released.set()
    texts = [answer.body["output_text"] for answer in (answered, await running, retried)]
    assert texts == ["answered", "running", "retry"]


async def test_samples_of_one_prompt_stay_different_although_some_creates_were_refused(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    samples, refused = 6, 3
    refuse_the_first = f"""
        CREATE SEQUENCE refused;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('refused') <= {refused} THEN
                RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100';
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON responses
        FOR EACH STATEMENT EXECUTE FUNCTION refuse();
    """
    async with private_stack() as own_stack:
        async with await psycopg.AsyncConnection.connect(own_stack.dsn) as connection:
            await connection.execute(refuse_the_first)
        client = own_stack.openai().with_options(max_retries=2)
        released = asyncio.Event()
        model = fake.script(
            *([wait_for(released), *reply(f"sample {number}")] for number in range(samples))
        )
        calls = [
            asyncio.create_task(client.responses.create(model=model, input="A joke."))
            for _ in range(samples)
        ]
        await until(lambda: len(fake.requests_for(model)) == samples)
        released.set()
        responses = await asyncio.gather(*calls)
    assert len({response.id for response in responses}) == samples
    assert len({response.output_text for response in responses}) == samples


async def test_a_retry_runs_again_after_the_first_client_disconnected(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("first"), hang()], reply("second"))
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
    second = await api.call("POST", "/responses", body, headers={"idempotency-key": "left"})
    last = decode(split_frames(second.raw)[-2])
    assert last["type"] == "response.completed"
    assert last["response"]["output_text"] == "second"


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_an_empty_or_too_long_key_is_refused(api: Api, fake: FakeUpstream, key: str) -> None:
    refused = await _post(api, {"model": fake.script(reply("x"))}, **{"idempotency-key": key})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "Idempotency-Key",
        "invalid_value",
    )
