"""A turn of a background response that its upstream breaks off is repeated (docs/adr/0014).

test_routing.py has other numbers of repeats, and other upstreams that take the repeated turn.
"""

import asyncio
from functools import partial

import pytest
from pydantic import BaseModel

from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import command_facts
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_abandoned, assert_one_stream
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    call,
    chunk,
    drop,
    finish,
    hang,
    raw,
    reasoning,
    reply,
    reset,
    status,
    text,
)
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import item_statuses
from tests.support.upstream_faults import separate_reads

BROKEN_OFF: dict[str, list[Step]] = {
    "a reset": [text("so ", "far"), reset()],
    "a closed connection": [text("so ", "far"), drop()],
    "a clean end without a reason": [text("so ", "far"), raw(b"")],
    "an end in an event": [text("so ", "far"), separate_reads(b'data: {"choices":[{"del'), drop()],
    "an error with a status": [text("so ", "far"), chunk({"error": {"message": "!", "code": 500}})],
    "an error without a status": [text("so ", "far"), chunk({"error": "EngineCore died"})],
    "a rate limit": [text("so ", "far"), chunk({"error": {"message": "!", "code": 429}})],
    "finish_reason error": [text("so ", "far"), finish("error")],
    "finish_reason abort": [text("so ", "far"), finish("abort")],
    "in reasoning": [reasoning("hm"), reset()],
    "in arguments": [text("so ", "far"), call(0, "call_a", "look", '{"ci'), drop()],
}
"""As engines that are stopped or killed end a stream after its first output."""
ENDS_AT_ONCE: dict[str, tuple[list[Step], str]] = {
    "an error that blames the request": (
        [text("so far"), chunk({"error": {"message": "!", "code": 400}})],
        "failed",
    ),
    "a quota": (
        [text("so far"), chunk({"error": {"message": "!", "code": "insufficient_quota"}})],
        "failed",
    ),
    "a refused credential": (
        [text("so far"), chunk({"error": {"message": "!", "code": 401}})],
        "failed",
    ),
    "garbage": ([text("so far"), raw(b"data: {nonsense\n\n")], "failed"),
    "the length limit": ([text("so far"), finish("length")], "incomplete"),
    "the content filter": ([text("so far"), finish("content_filter")], "incomplete"),
}
WHOLE = reply("at ", "last")


async def follow(api: Api, model: str, **body: object) -> tuple[JSON, list[JSON]]:
    """Follows a background response to its end; returns it and its checked events."""
    async with api.post_stream(model, background=True, **body) as stream:
        await stream.to_end()
    events = assert_one_stream(stream.frames)
    assert await api.get(stream.response_id) == stream.final
    return stream.final, events


async def repeats(stack: Stack, response_id: str) -> int:
    """How many attempts at the response ended with a repeated turn."""
    return int(
        await stack.value(
            "SELECT count(*) FROM attempts WHERE response_id = %s AND outcome = 'repeated'",
            response_id.removeprefix("resp_"),
        )
    )


async def test_a_turn_that_is_broken_off_is_repeated(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    async def check(name: str, script: Script) -> None:
        model = fake.script(script, WHOLE)
        response, events = await follow(shared_stack.api(), model)
        assert (response["status"], response["output_text"]) == ("completed", "at last"), name
        assert_abandoned(events, items=2 if name == "in arguments" else 1)
        assert len(fake.requests_for(model)) == 2, name
        assert await repeats(shared_stack, response["id"]) == 1, name

    await asyncio.gather(*[check(name, script) for name, script in BROKEN_OFF.items()])


async def test_a_turn_without_output_that_ends_is_repeated(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    async def check(script: Script) -> None:
        response, _ = await follow(shared_stack.api(), fake.script(script, WHOLE))
        assert (response["status"], response["output_text"]) == ("completed", "at last")
        assert await repeats(shared_stack, response["id"]) == 1

    await asyncio.gather(check([raw(b"")]), check([finish("error")]))


async def test_other_endings_are_not_repeated(shared_stack: Stack, fake: FakeUpstream) -> None:
    async def check(name: str, script: Script, expected: str) -> None:
        model = fake.script(script, WHOLE)
        response, _ = await follow(shared_stack.api(), model)
        assert (response["status"], response["output_text"]) == (expected, "so far"), name
        assert len(fake.requests_for(model)) == 1, name

    await asyncio.gather(*[check(name, *case) for name, case in ENDS_AT_ONCE.items()])


async def test_a_foreground_response_is_not_repeated(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    for broken in (BROKEN_OFF["a reset"], BROKEN_OFF["finish_reason abort"]):
        model = fake.script(broken, WHOLE)
        async with shared_stack.api().post_stream(model) as stream:
            assert_stream_obeys_contract(await stream.to_end())
        assert (stream.final["status"], stream.final["output_text"]) == ("failed", "so far")
        assert len(fake.requests_for(model)) == 1


async def test_an_engine_that_restarts_costs_the_turn_and_is_shown(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """It breaks off, is down for a while, breaks off once more, and is up."""
    broken, down = BROKEN_OFF["a reset"], [status(503)]
    model = fake.script(broken, down, broken, WHOLE)
    response, events = await follow(shared_stack.api(), model)
    assert (response["status"], response["output_text"]) == ("completed", "at last")
    assert_abandoned(events, items=2)
    explained = await command_facts(shared_stack, "explain", response["id"])
    shown = [
        event["text"]
        for event in explained["timeline"]
        if event["what"] in ("repeated", "deferred")
    ]
    assert [text.partition(":")[0] for text in shown] == [
        "attempt 1 broken off by its upstream; the turn is repeated",
        "attempt 2 deferred",
        "attempt 3 broken off by its upstream; the turn is repeated",
    ]
    assert "(upstream_reset)" in shown[0]
    lines = [
        line
        for worker in shared_stack.workers
        for line in worker.log.read_text().splitlines()
        if response["id"] in line and "turn_broken_off" in line
    ]
    assert len(lines) == 2


async def test_a_cancel_and_a_delete_before_the_repeat(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api()
    model = fake.script([text("so far"), reset()])
    ids = [await api.create_background(model) for _ in range(2)]
    for response_id in ids:
        await until(partial(repeats, shared_stack, response_id))
    shown = await api.get(ids[0])
    assert (shown["status"], shown["output"][0]["status"]) == ("in_progress", "incomplete")
    assert (await api.call("DELETE", f"/responses/{ids[1]}")).status == 200
    assert (await api.cancel(ids[0])).body["status"] == "cancelled"
    response = await api.get(ids[0])
    assert (response["output_text"], item_statuses(response)) == ("so far", ["message incomplete"])
    assert_one_stream(await api.replay(ids[0]))
    assert (await api.call("GET", f"/responses/{ids[1]}")).status == 404


async def test_a_compaction_that_is_broken_off_is_made_again(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    """A stored one is not."""
    api, summary, answer = tool_stack.api(), reply("The cat is Momo."), reply("Rex.")
    history = [
        {"role": "user", "content": "My cat is called Momo."},
        {"role": "assistant", "content": "Noted. " + "x" * 6000},
        {"role": "user", "content": "And my dog?"},
    ]
    compacts = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}

    async def check(*scripts: Script) -> None:
        model = fake.script(*scripts)
        response, _ = await follow(api, model, input=history, **compacts)
        assert (response["status"], response["output_text"]) == ("completed", "Rex.")
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert len(fake.requests_for(model)) == 3

    await asyncio.gather(
        check([text("Half"), raw(b"")], summary, answer),
        check([text("Half"), reset()], summary, answer),
        check(summary, [text("Re"), reset()], answer),
    )


class Person(BaseModel):
    """The structured output."""

    name: str


async def test_the_stream_helper_survives_a_repeated_turn(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text('{"name": '), reset()], reply('{"name": ', '"Ada"}'))
    async with shared_stack.openai().responses.stream(
        model=model, input="Go.", text_format=Person, background=True
    ) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Person(name="Ada")


@pytest.mark.long
async def test_the_count_survives_the_death_of_workers(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """One worker is killed while the response waits, and one in the middle of the repeated turn,
    which counts as a crash and not as a repeat."""
    broken: Script = [text("so far"), reset()]
    model = fake.script(broken, [text("once ", "more"), hang()], broken)
    settings = {**SHORT_LEASES, "BACKBURNER_UPSTREAM__REPEAT_TURNS": "1"}
    async with private_stack(settings=settings) as own_stack:
        api = own_stack.api()
        response_id = await api.create_background(model)
        await until(lambda: repeats(own_stack, response_id))
        own_stack.kill(own_stack.workers[0])
        own_stack.spawn_worker()
        async with api.follow(response_id) as stream:
            await stream.until("response.output_text.delta", count=3)
        own_stack.kill(own_stack.workers[0])
        own_stack.spawn_worker()
        response = await api.wait_for_end(response_id, 60)
        assert (response["status"], response["output_text"]) == ("failed", "so far")
        assert await repeats(own_stack, response_id) == 1
        assert len(fake.requests_for(model)) == 3
        events = assert_one_stream(await api.replay(response_id))
        assert_abandoned(events, items=2)
