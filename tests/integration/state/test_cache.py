"""Remembered answers (docs/cache.md): asked for by request, found by the exact question, and responses like any other."""

import asyncio
import json
from typing import Any

import pytest

from models import keys
from models.wire.events import split_frames
from tests.support.api import JSON, Api, HttpResponse, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    delta,
    done,
    finish,
    reasoning,
    refusal,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack

FUNCTION = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
}


async def _post(api: Api, model: str, **body: Any) -> HttpResponse:
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": "Hello.", "cache": True, **body}
    )
    assert answer.status == 200, answer.raw
    return answer


def _events(answer: HttpResponse) -> list[JSON]:
    *frames, last = split_frames(answer.raw)
    assert last == b"data: [DONE]\n\n"
    return [decode(frame) for frame in frames]


def _said(response: JSON) -> list[JSON]:
    return [
        {key: value for key, value in item.items() if key != "id"} for item in response["output"]
    ]


async def test_the_same_question_is_answered_from_memory_as_a_response_of_its_own(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once ", "only"))
    first, second = [await _post(api, model) for _ in range(2)]
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert len(fake.requests_for(model)) == 1
    assert _said(first.body) == _said(second.body)
    assert first.body["usage"] == second.body["usage"] is not None
    assert second.body["id"] != first.body["id"]
    assert second.body["output"][0]["id"] != first.body["output"][0]["id"]
    assert await api.get(second.body["id"]) == second.body


async def test_a_hit_is_the_same_as_a_stream_and_in_the_background(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once ", "only"))
    first = await _post(api, model)
    streamed = await _post(api, model, stream=True)
    assert streamed.headers["x-cache"] == "hit"
    events = _events(streamed)
    assert_stream_obeys_contract(events)
    assert _said(events[-1]["response"]) == _said(first.body)

    queued = await _post(shared_stack.api(1), model, background=True)
    assert (queued.headers["x-cache"], queued.body["status"], _said(queued.body)) == (
        "hit",
        "completed",
        _said(first.body),
    )
    response_id = queued.body["id"]
    assert await api.get(response_id) == queued.body
    replayed = await api.replay(response_id)
    assert_stream_obeys_contract([decode(frame) for frame in replayed])
    assert [decode(frame)["type"] for frame in replayed[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert decode(replayed[-1])["response"] == queued.body
    assert await api.replay(response_id, after=3) == replayed[4:]
    assert (await api.call("GET", f"/responses/{response_id}/input_items")).body["data"][0][
        "content"
    ][0]["text"] == "Hello."
    assert (await api.cancel(response_id)).error["message"] == "Cannot cancel a completed response."

    live = await _post(api, model, background=True, stream=True)
    assert live.headers["x-cache"] == "hit"
    assert_stream_obeys_contract(_events(live))
    assert len(fake.requests_for(model)) == 1


async def test_every_kind_of_item_that_a_model_says_can_be_told_again(
    api: Api, fake: FakeUpstream
) -> None:
    tools = [
        FUNCTION,
        {"type": "custom", "name": "write"},
        *({"type": kind} for kind in ("local_shell", "apply_patch", "shell")),
    ]
    arguments = {
        "shell": {"commands": ["ls", ""]},
        "local_shell": {"command": ["ls"]},
        "apply_patch": {"type": "delete_file", "path": "a"},
    }
    model = fake.script(
        [
            reasoning("I ", "think"), text("I say"), refusal("but not this"), call(0, "call_a", "look", '{"a":', "1}"),
            call(1, "call_b", "write", json.dumps({"input": "words"})),
            *(call(2 + at, f"call_{name}", name, json.dumps(told)) for at, (name, told) in enumerate(arguments.items())),
            finish("tool_calls"), usage(), done(),
        ]
    )  # fmt: skip
    first = await _post(api, model, tools=tools)
    kinds = [item["type"] for item in first.body["output"]]
    assert kinds == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "shell_call",
        "local_shell_call",
        "apply_patch_call",
    ]
    second = await _post(api, model, tools=tools, stream=True)
    events = _events(second)
    assert_stream_obeys_contract(events)
    assert second.headers["x-cache"] == "hit"
    assert _said(events[-1]["response"]) == _said(first.body)


async def test_log_probabilities_are_told_again(api: Api, fake: FakeUpstream) -> None:
    told = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    model = fake.script([delta({"content": "a"}, logprobs=told), finish(), usage(), done()])
    asked = {"include": ["message.output_text.logprobs"], "stream": True}
    first, second = [_events(await _post(api, model, **asked)) for _ in range(2)]
    assert_stream_obeys_contract(second)
    assert (
        second[-1]["response"]["output"][0]["content"]
        == first[-1]["response"]["output"][0]["content"]
    )
    assert len(fake.requests_for(model)) == 1


async def test_what_no_answer_depends_on_is_no_part_of_the_question(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("same"))
    await _post(
        api,
        model,
        input=[{"role": "user", "content": "Hi", "id": "msg_1"}],
        temperature=0.5,
        tools=[FUNCTION],
    )
    again = await _post(
        api, model, tools=[FUNCTION], temperature=0.5, input=[{"role": "user", "content": "Hi", "id": "msg_2"}], metadata={"run": "2"},
        user="u", safety_identifier="s", prompt_cache_key="k", cache={"ttl": 5}, background=True,
    )  # fmt: skip
    assert again.headers["x-cache"] == "hit"
    assert again.body["metadata"] == {"run": "2"}


OTHERS: dict[str, JSON] = {
    "input": {"input": "Hello!"},
    "role": {"input": [{"role": "developer", "content": "Hello."}]},
    "instructions": {"instructions": "Be brief."},
    "temperature": {"temperature": 0.1},
    "top_p": {"top_p": 0.1},
    "max_output_tokens": {"max_output_tokens": 100},
    "text": {"text": {"format": {"type": "json_object"}}},
    "reasoning": {"reasoning": {"effort": "low"}},
    "tools": {"tools": [FUNCTION]},
    "tools' order of keys": {
        "tools": [{**FUNCTION, "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}]
    },
    "tool_choice": {"tools": [FUNCTION], "tool_choice": "none"},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "include": {"include": ["message.output_text.logprobs"]},
}


async def test_whatever_changes_the_answer_is_another_question(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("some"))
    await _post(api, model)
    results = {
        name: (await _post(api, model, **changed)).headers["x-cache"]
        for name, changed in OTHERS.items()
    }
    assert results == dict.fromkeys(OTHERS, "miss")
    assert (await _post(api, fake.script(reply("other")))).headers["x-cache"] == "miss"


async def test_another_project_gets_nothing_of_it(shared_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("mine"), reply("theirs"))
    stranger = shared_stack.api(key=keys.create(shared_stack.dsn, "stranger to the cache"))
    await _post(shared_stack.api(), model)
    theirs = await _post(stranger, model)
    assert (theirs.headers["x-cache"], theirs.body["output_text"]) == ("miss", "theirs")


async def test_a_request_that_does_not_ask_neither_remembers_nor_finds(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("1"), reply("2"), reply("3"))
    plain = await api.call("POST", "/responses", {"model": model, "input": "Hello."})
    assert "x-cache" not in plain.headers
    assert (await _post(api, model)).headers["x-cache"] == "miss"
    refused = await api.call(
        "POST", "/responses", {"model": model, "input": "Hello.", "cache": False}
    )
    assert ("x-cache" in refused.headers, refused.body["output_text"]) == (False, "3")


async def test_chains_are_part_of_the_question_and_hits_can_be_chained_on(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"), reply("another two"))
    first, first_again = [(await _post(api, model)).body["id"] for _ in range(2)]
    second = await _post(api, model, input="And?", previous_response_id=first)
    again = await _post(api, model, input="And?", previous_response_id=first_again)
    assert [answer.headers["x-cache"] for answer in (second, again)] == ["miss", "hit"]
    assert again.body["previous_response_id"] == first_again
    assert (await _post(api, model, input="And?")).headers["x-cache"] == "miss"
    third = await api.create(model, input="More", previous_response_id=again.body["id"])
    assert third["status"] == "completed"
    assert [message["content"] for message in fake.requests_for(model)[-1].messages] == [
        "Hello.",
        "one",
        "And?",
        "two",
        "More",
    ]


async def test_a_call_in_a_remembered_answer_waits_for_its_output(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(
        [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()], reply("seen")
    )
    await _post(api, model, tools=[FUNCTION])
    asked = (await _post(api, model, tools=[FUNCTION])).body
    bare = await api.call(
        "POST", "/responses", {"model": model, "input": "Hi", "previous_response_id": asked["id"]}
    )
    assert bare.error["message"] == "No tool output found for function call call_a."
    output = [{"type": "function_call_output", "call_id": "call_a", "output": "42"}]
    assert (await api.create(model, input=output, previous_response_id=asked["id"]))[
        "output_text"
    ] == "seen"


async def test_a_deleted_response_takes_its_answer_out_of_memory(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"))
    await _post(api, model)
    hit = await _post(api, model)
    assert (await api.call("DELETE", f"/responses/{hit.body['id']}")).status == 200
    assert (await api.call("GET", f"/responses/{hit.body['id']}")).status == 404
    assert (await _post(api, model)).headers["x-cache"] == "miss"


async def test_a_deleted_history_is_not_answered_from_memory(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("one"))
    first = await api.create(model)
    second = await api.create(model, previous_response_id=first["id"])
    wish = {"model": model, "input": "x", "previous_response_id": second["id"], "cache": True}
    assert (await api.call("POST", "/responses", wish)).headers["x-cache"] == "miss"
    assert (await api.call("DELETE", f"/responses/{first['id']}")).status == 200
    answer = await api.call("POST", "/responses", wish)
    assert (answer.status, answer.headers["x-cache"], answer.error["code"]) == (
        400,
        "miss",
        "previous_response_not_found",
    )


async def test_an_idempotency_key_comes_before_the_cache(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("once"))
    body = {"model": model, "input": "Hello.", "cache": True, "background": True}
    miss = await api.call("POST", "/responses", body, headers={"idempotency-key": "a"})
    await api.wait_for_end(miss.body["id"])
    hit, again, missed, _ = [
        await api.call("POST", "/responses", body, headers={"idempotency-key": key})
        for key in "bbab"
    ]
    assert [answer.headers["x-cache"] for answer in (miss, hit, again, missed)] == [
        "miss",
        "hit",
        "hit",
        "miss",
    ]
    assert missed.body["id"] == miss.body["id"] != hit.body["id"]
    assert again.body == hit.body
    assert len(fake.requests_for(model)) == 1


async def test_what_is_not_to_be_stored_can_still_be_remembered(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("unstored"))
    await _post(api, model, store=False)
    hit = await _post(api, model, store=False)
    assert hit.headers["x-cache"] == "hit"
    assert (await api.call("GET", f"/responses/{hit.body['id']}")).status == 404


async def test_answers_that_are_not_whole_are_not_remembered(api: Api, fake: FakeUpstream) -> None:
    cut = fake.script([text("half"), finish("length"), usage(), done()], reply("whole"))
    results = [
        (answer.headers["x-cache"], answer.body["status"])
        for answer in [await _post(api, cut) for _ in range(2)]
    ]
    assert results == [("miss", "incomplete"), ("miss", "completed")]

    opened = asyncio.Event()
    slow = fake.script([text("some"), wait_for(opened), *reply("more")], reply("whole"))
    cancelled = (await _post(api, slow, background=True)).body["id"]
    await until(lambda: fake.requests_for(slow) and fake.requests_for(slow)[0].sent_text)
    await api.cancel(cancelled)
    assert (await _post(api, slow)).headers["x-cache"] == "miss"


async def test_a_failure_says_that_it_is_no_remembered_answer(api: Api, fake: FakeUpstream) -> None:
    failed = await api.call(
        "POST", "/responses", {"model": "nobody-knows", "input": "Hello.", "cache": True}
    )
    assert (failed.error["code"], failed.headers["x-cache"]) == ("model_not_found", "miss")
    refused = await api.call(
        "POST", "/responses", {"model": fake.script(reply("x")), "input": 1, "cache": True}
    )
    assert (refused.status, "x-cache" in refused.headers) == (400, False)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "a number": (1, "cache", "invalid_type"),
    "a text": ("yes", "cache", "invalid_type"),
    "no time": ({"ttl": 0}, "cache.ttl", "integer_below_min_value"),
    "a text for a time": ({"ttl": "1h"}, "cache.ttl", "invalid_type"),
    "a fraction": ({"ttl": 1.5}, "cache.ttl", "invalid_type"),
    "two days": ({"ttl": 172_800}, "cache.ttl", "integer_above_max_value"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
async def test_a_wish_that_cannot_be_read_is_refused(
    api: Api, fake: FakeUpstream, case: str
) -> None:
    wish, param, code = REFUSED[case]
    refused = await api.call(
        "POST", "/responses", {"model": fake.script(reply("x")), "input": "Hello.", "cache": wish}
    )
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, param, code)


async def test_a_large_answer_is_not_remembered(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("x" * 1_100_000))
    results = [(await _post(api, model)).headers["x-cache"] for _ in range(2)]
    assert results == ["miss", "miss"]


async def test_a_remembered_answer_becomes_part_of_its_conversation(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"))
    first, second = [(await api.call("POST", "/conversations", {})).body["id"] for _ in range(2)]
    results = [
        (await _post(api, model, conversation=conversation, input=said)).headers["x-cache"]
        for said in ("1", "2")
        for conversation in (first, second)
    ]
    assert results == ["miss", "hit", "miss", "hit"]
    texts = [await _texts(api, conversation) for conversation in (first, second)]
    assert texts == [["1", "one", "2", "two"]] * 2

    read_only = await _post(api, model, conversation=second, input="3", store=False)
    again = await _post(api, model, conversation=second, input="3", store=False)
    assert (read_only.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
    assert await _texts(api, second) == texts[1]
    assert (await _post(api, model, input="1", background=True, conversation=first)).headers[
        "x-cache"
    ] == "miss"


async def test_a_conversation_that_is_busy_is_not_answered_from_memory(
    api: Api, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model, slow = fake.script(reply("known")), fake.script([wait_for(opened), *reply("slow")])
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    await _post(api, model)
    running = await api.create_background(slow, conversation=conversation)
    refused = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": "Hello.", "cache": True, "conversation": conversation},
    )
    assert refused.error["code"] == "conversation_locked"
    opened.set()
    await api.wait_for_end(running)


async def _texts(api: Api, conversation: str) -> list[str]:
    page = await api.call("GET", f"/conversations/{conversation}/items", params={"order": "asc"})
    return [item["content"][0]["text"] for item in page.body["data"]]
