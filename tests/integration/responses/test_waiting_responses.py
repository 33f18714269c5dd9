"""`wait_for_previous`: a background response that begins when its previous one has ended."""

import asyncio

import pytest

from tests.integration.responses.test_chains import roles_and_texts
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, until
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    fail,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack
from tests.support.strict_types import check_response

TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]


async def post(api: Api, model: str, previous: str, **body: object) -> JSON:
    """A response that waits for `previous`."""
    return await api.create(
        model, background=True, previous_response_id=previous, wait_for_previous=True, **body
    )


async def running(api: Api, fake: FakeUpstream, *last: object) -> tuple[str, asyncio.Event]:
    """A response that runs until the event is set."""
    released = asyncio.Event()
    model = fake.script([text("one "), wait_for(released), *(last or reply("two"))])
    response_id = await api.create_background(model, input="first")
    await until(lambda: fake.requests_for(model))
    return response_id, released


async def test_it_begins_with_the_items_of_the_previous_one(api: Api, fake: FakeUpstream) -> None:
    first, released = await running(api, fake)
    models = [fake.script(reply(f"answer {number}")) for number in range(3)]
    previous, waiting = first, []
    for model in models:
        created = await post(api, model, previous, input=f"after {previous == first}")
        check_response(created)
        assert (created["status"], created["wait_for_previous"]) == ("queued", True)
        previous = created["id"]
        waiting.append(previous)
    shown = await api.call("GET", f"/responses/{waiting[0]}")
    assert shown.body["status"] == "queued"
    assert shown.body["progress"]["waits_for"] == {"type": "response", "response_id": first}
    assert int(shown.headers["openai-poll-after-ms"]) <= 10_000
    assert not any(fake.requests_for(model) for model in models)
    released.set()
    last = await api.wait_for_end(waiting[-1], 10)
    assert (last["status"], last["output_text"]) == ("completed", "answer 2")
    assert roles_and_texts(fake.requests_for(models[1])[0].messages) == [
        ("user", "first"),
        ("assistant", "one two"),
        ("user", "after True"),
        ("assistant", "answer 0"),
        ("user", "after False"),
    ]


async def test_a_stream_of_a_waiting_response_goes_on_when_it_runs(
    api: Api, fake: FakeUpstream
) -> None:
    first, released = await running(api, fake)
    model = fake.script(reply("streamed"))
    body = {"background": True, "previous_response_id": first, "wait_for_previous": True}
    async with api.post_stream(model, **body) as stream:
        await stream.until("response.queued")
        released.set()
        await stream.to_end()
    assert stream.final["output_text"] == "streamed"


async def test_after_an_end_it_runs_at_once_and_the_official_client_can_ask_for_it(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client = shared_stack.openai()
    first = await client.responses.create(model=fake.script(reply("one")), input="Go.")
    second = await client.responses.create(
        model=fake.script(reply("two")),
        input="On.",
        background=True,
        previous_response_id=first.id,
        extra_body={"wait_for_previous": True},
    )
    ended = await shared_stack.api().wait_for_end(second.id)
    assert ended["output_text"] == "two"


async def _fail(api: Api, _: str, released: asyncio.Event) -> str:
    released.set()
    return "has failed"


async def _cancel(api: Api, first: str, _: asyncio.Event) -> str:
    await api.cancel(first)
    return "was cancelled"


async def _delete(api: Api, first: str, _: asyncio.Event) -> str:
    await api.call("DELETE", f"/responses/{first}")
    return "was deleted"


@pytest.mark.parametrize("end", [_fail, _cancel, _delete])
async def test_a_chain_whose_first_response_does_not_complete_fails(
    api: Api, fake: FakeUpstream, end: object
) -> None:
    first, released = await running(api, fake, fail())
    second = (await post(api, fake.script(reply("no")), first))["id"]
    third = (await post(api, fake.script(reply("no")), second))["id"]
    what = await end(api, first, released)  # type: ignore[operator]
    for response_id, previous, why in ((second, first, what), (third, second, "has failed")):
        ended = await api.wait_for_end(response_id)
        check_response(ended)
        assert ended["status"] == "failed"
        assert ended["error"] == {
            "code": "server_error",
            "message": f"The response did not run: its previous response '{previous}' {why}.",
        }
        assert (await api.replay(response_id))[-1].startswith(b"event: response.failed")


async def test_a_previous_response_with_open_calls_is_not_continued(
    api: Api, fake: FakeUpstream
) -> None:
    calls = [call(0, "call_a", "f", "{}"), finish("tool_calls"), usage(), done()]
    released = asyncio.Event()
    model = fake.script([wait_for(released), *calls])
    first = await api.create_background(model, tools=TOOLS)
    second = (await post(api, fake.script(reply("no")), first))["id"]
    released.set()
    ended = await api.wait_for_end(second)
    assert ended["status"] == "failed"
    assert "tool calls whose outputs are missing" in ended["error"]["message"]


async def test_waiting_responses_are_cancelled_and_deleted(api: Api, fake: FakeUpstream) -> None:
    first, released = await running(api, fake)
    cancelled = (await post(api, fake.script(reply("no")), first))["id"]
    after = (await post(api, fake.script(reply("no")), cancelled))["id"]
    deleted = (await post(api, fake.script(reply("no")), first))["id"]
    kept = (await post(api, fake.script(reply("yes")), first))["id"]
    assert (await api.cancel(cancelled)).body["status"] == "cancelled"
    assert (await api.call("DELETE", f"/responses/{deleted}")).status == 200
    assert "was cancelled" in (await api.wait_for_end(after))["error"]["message"]
    released.set()
    assert (await api.wait_for_end(kept))["output_text"] == "yes"
    assert (await api.get(cancelled))["status"] == "cancelled"
    assert (await api.call("GET", f"/responses/{deleted}")).status == 404


async def test_what_cannot_wait_is_refused(
    api: Api, shared_stack: Stack, fake: FakeUpstream
) -> None:
    first, released = await running(api, fake, fail())
    body: JSON = {"model": fake.script(reply("x")), "input": "x", "wait_for_previous": True}
    waiting = body | {"background": True, "previous_response_id": first}

    async def refused(body: JSON, param: str, code: str) -> None:
        answer = await api.call("POST", "/responses", body)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code)

    await refused(body | {"background": True}, "wait_for_previous", "unsupported_parameter")
    await refused(waiting | {"background": False}, "wait_for_previous", "unsupported_parameter")
    await refused(waiting | {"wait_for_previous": "yes"}, "wait_for_previous", "invalid_type")
    await refused(waiting | {"cache": True}, "cache", "unsupported_parameter")
    await refused(
        waiting | {"wait_for_previous": False},
        "previous_response_id",
        "previous_response_not_ready",
    )
    unknown = waiting | {"previous_response_id": UNKNOWN_RESPONSE_ID}
    await refused(unknown, "previous_response_id", "previous_response_not_found")
    released.set()
    await api.wait_for_end(first)
    await refused(waiting, "previous_response_id", "previous_response_failed")


async def test_a_repeated_create_makes_one_waiting_response(api: Api, fake: FakeUpstream) -> None:
    first, released = await running(api, fake)
    model = fake.script(reply("once"))
    body = {
        "model": model,
        "input": "x",
        "background": True,
        "previous_response_id": first,
        "wait_for_previous": True,
    }
    headers = {"idempotency-key": f"wait-{model}"}
    made = [await api.call("POST", "/responses", body, headers=headers) for _ in range(2)]
    assert made[0].body["id"] == made[1].body["id"]
    released.set()
    await api.wait_for_end(made[0].body["id"])
    assert len(fake.requests_for(model)) == 1


async def test_no_create_that_races_with_the_end_of_its_previous_response_is_lost(
    api: Api, fake: FakeUpstream
) -> None:
    async def chain(pauses: int) -> JSON:
        first = await api.create_background(fake.script(reply("one")))
        for _ in range(pauses):
            await api.get(first)
        second = await post(api, fake.script(reply("two")), first)
        third = await post(api, fake.script(reply("three")), second["id"])
        return await api.wait_for_end(third["id"])

    ended = await asyncio.gather(*(chain(number % 8) for number in range(32)))
    assert [each["output_text"] for each in ended] == ["three"] * len(ended)
