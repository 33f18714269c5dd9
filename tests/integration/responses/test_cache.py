"""Cached answers (docs/cache.md): on request, for an identical question, as a new response."""

import asyncio
import json
from typing import Any

import pytest

from models.wire.events import split_frames
from tests.integration.operator.test_operations import command_facts
from tests.support import keys
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
from tests.support.projects import limited_project
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


def _output_without_ids(response: JSON) -> list[JSON]:
    return [
        {key: value for key, value in item.items() if key != "id"} for item in response["output"]
    ]


async def test_a_project_may_have_a_smaller_share_of_the_cache(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, cache_bytes=4000)
    first, second = (fake.script(reply(letter * 2500)) for letter in "ab")
    for model, expected in ((first, "miss"), (first, "hit"), (second, "miss"), (first, "miss")):
        assert (await _post(project.api(), model)).headers["x-cache"] == expected
    facts = await command_facts(shared_stack, "projects", "show", str(project.id))
    [use] = [quota for quota in facts["quotas"] if quota["name"] == "cache_bytes"]
    assert use["limit"] == 4000
    assert 2500 < use["used"] <= 4000


async def test_the_same_question_is_answered_from_the_cache_as_a_new_response(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once ", "only"))
    first, second = [await _post(api, model) for _ in range(2)]
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert len(fake.requests_for(model)) == 1
    assert _output_without_ids(first.body) == _output_without_ids(second.body)
    assert first.body["usage"] == second.body["usage"] is not None
    assert second.body["id"] != first.body["id"]
    assert second.body["output"][0]["id"] != first.body["output"][0]["id"]
    assert await api.get(second.body["id"]) == second.body


async def test_a_cached_answer_is_the_same_streamed_and_in_the_background(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("once ", "only"))
    first = await _post(api, model)
    streamed = await _post(api, model, stream=True)
    assert streamed.headers["x-cache"] == "hit"
    events = _events(streamed)
    assert_stream_obeys_contract(events)
    assert _output_without_ids(events[-1]["response"]) == _output_without_ids(first.body)

    queued = await _post(shared_stack.api(1), model, background=True)
    assert (queued.headers["x-cache"], queued.body["status"], _output_without_ids(queued.body)) == (
        "hit",
        "completed",
        _output_without_ids(first.body),
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


async def test_every_kind_of_model_output_can_be_cached(api: Api, fake: FakeUpstream) -> None:
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
            reasoning("I ", "think"),
            text("I say"),
            refusal("but not this"),
            call(0, "call_a", "look", '{"a":', "1}"),
            call(1, "call_b", "write", json.dumps({"input": "words"})),
            *(
                call(2 + index, f"call_{name}", name, json.dumps(value))
                for index, (name, value) in enumerate(arguments.items())
            ),
            finish("tool_calls"),
            usage(),
            done(),
        ]
    )
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
    assert _output_without_ids(events[-1]["response"]) == _output_without_ids(first.body)


async def test_log_probabilities_are_cached(api: Api, fake: FakeUpstream) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    model = fake.script([delta({"content": "a"}, logprobs=logprobs), finish(), usage(), done()])
    body = {"include": ["message.output_text.logprobs"], "stream": True}
    first, second = [_events(await _post(api, model, **body)) for _ in range(2)]
    assert_stream_obeys_contract(second)
    assert (
        second[-1]["response"]["output"][0]["content"]
        == first[-1]["response"]["output"][0]["content"]
    )
    assert len(fake.requests_for(model)) == 1


async def test_fields_that_do_not_change_the_answer_are_not_compared(
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
    second = await _post(
        api,
        model,
        tools=[FUNCTION],
        temperature=0.5,
        input=[{"role": "user", "content": "Hi", "id": "msg_2"}],
        metadata={"run": "2"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        cache={"ttl": 5},
        background=True,
    )
    assert second.headers["x-cache"] == "hit"
    assert second.body["metadata"] == {"run": "2"}


CHANGES: dict[str, JSON] = {
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


async def test_every_field_that_changes_the_answer_is_compared(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("some"))
    await _post(api, model)
    results = {
        name: (await _post(api, model, **changed)).headers["x-cache"]
        for name, changed in CHANGES.items()
    }
    assert results == dict.fromkeys(CHANGES, "miss")
    assert (await _post(api, fake.script(reply("other")))).headers["x-cache"] == "miss"


async def test_another_project_gets_no_cached_answer(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("mine"), reply("theirs"))
    other_project_api = shared_stack.api(key=keys.create(shared_stack.dsn, "another project"))
    await _post(shared_stack.api(), model)
    of_other_project = await _post(other_project_api, model)
    assert (of_other_project.headers["x-cache"], of_other_project.body["output_text"]) == (
        "miss",
        "theirs",
    )


async def test_a_request_without_cache_neither_stores_nor_reads_the_cache(
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


async def test_the_history_is_compared_and_a_cached_response_can_be_continued(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"), reply("another two"))
    first, first_again = [(await _post(api, model)).body["id"] for _ in range(2)]
    second = await _post(api, model, input="And?", previous_response_id=first)
    second_again = await _post(api, model, input="And?", previous_response_id=first_again)
    assert [answer.headers["x-cache"] for answer in (second, second_again)] == ["miss", "hit"]
    assert second_again.body["previous_response_id"] == first_again
    assert (await _post(api, model, input="And?")).headers["x-cache"] == "miss"
    third = await api.create(model, input="More", previous_response_id=second_again.body["id"])
    assert third["status"] == "completed"
    assert [message["content"] for message in fake.requests_for(model)[-1].messages] == [
        "Hello.",
        "one",
        "And?",
        "two",
        "More",
    ]


async def test_a_call_in_a_cached_answer_needs_its_output(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()], reply("seen")
    )
    await _post(api, model, tools=[FUNCTION])
    first = (await _post(api, model, tools=[FUNCTION])).body
    without_output = await api.call(
        "POST", "/responses", {"model": model, "input": "Hi", "previous_response_id": first["id"]}
    )
    assert without_output.error["message"] == "No tool output found for function call call_a."
    output = [{"type": "function_call_output", "call_id": "call_a", "output": "42"}]
    assert (await api.create(model, input=output, previous_response_id=first["id"]))[
        "output_text"
    ] == "seen"


async def test_deleting_a_response_removes_its_answer_from_the_cache(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"))
    await _post(api, model)
    cached = await _post(api, model)
    assert (await api.call("DELETE", f"/responses/{cached.body['id']}")).status == 200
    assert (await api.call("GET", f"/responses/{cached.body['id']}")).status == 404
    assert (await _post(api, model)).headers["x-cache"] == "miss"


async def test_a_deleted_history_is_not_answered_from_the_cache(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"))
    first = await api.create(model)
    second = await api.create(model, previous_response_id=first["id"])
    body = {"model": model, "input": "x", "previous_response_id": second["id"], "cache": True}
    assert (await api.call("POST", "/responses", body)).headers["x-cache"] == "miss"
    assert (await api.call("DELETE", f"/responses/{first['id']}")).status == 200
    answer = await api.call("POST", "/responses", body)
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
    cached, again, same_as_first, _ = [
        await api.call("POST", "/responses", body, headers={"idempotency-key": key})
        for key in "bbab"
    ]
    assert [answer.headers["x-cache"] for answer in (miss, cached, again, same_as_first)] == [
        "miss",
        "hit",
        "hit",
        "miss",
    ]
    assert same_as_first.body["id"] == miss.body["id"] != cached.body["id"]
    assert again.body == cached.body
    assert len(fake.requests_for(model)) == 1


async def test_a_response_with_store_false_can_be_cached(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("unstored"))
    await _post(api, model, store=False)
    cached = await _post(api, model, store=False)
    assert cached.headers["x-cache"] == "hit"
    assert (await api.call("GET", f"/responses/{cached.body['id']}")).status == 404


async def test_incomplete_and_cancelled_answers_are_not_cached(
    api: Api, fake: FakeUpstream
) -> None:
    cut_off = fake.script([text("half"), finish("length"), usage(), done()], reply("whole"))
    results = [
        (answer.headers["x-cache"], answer.body["status"])
        for answer in [await _post(api, cut_off) for _ in range(2)]
    ]
    assert results == [("miss", "incomplete"), ("miss", "completed")]

    released = asyncio.Event()
    slow = fake.script([text("some"), wait_for(released), *reply("more")], reply("whole"))
    cancelled = (await _post(api, slow, background=True)).body["id"]
    await until(lambda: fake.requests_for(slow) and fake.requests_for(slow)[0].sent_text)
    await api.cancel(cancelled)
    assert (await _post(api, slow)).headers["x-cache"] == "miss"


async def test_a_failure_is_marked_as_a_cache_miss(api: Api, fake: FakeUpstream) -> None:
    failed = await api.call(
        "POST", "/responses", {"model": "no-such-model", "input": "Hello.", "cache": True}
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
async def test_an_invalid_cache_parameter_is_refused(
    api: Api, fake: FakeUpstream, case: str
) -> None:
    value, param, code = REFUSED[case]
    refused = await api.call(
        "POST", "/responses", {"model": fake.script(reply("x")), "input": "Hello.", "cache": value}
    )
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, param, code)


async def test_a_large_answer_is_not_cached(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("x" * 1_100_000))
    results = [(await _post(api, model)).headers["x-cache"] for _ in range(2)]
    assert results == ["miss", "miss"]


async def test_a_cached_answer_is_added_to_its_conversation(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("one"), reply("two"))
    first, second = [(await api.call("POST", "/conversations", {})).body["id"] for _ in range(2)]
    results = [
        (await _post(api, model, conversation=conversation, input=text)).headers["x-cache"]
        for text in ("1", "2")
        for conversation in (first, second)
    ]
    assert results == ["miss", "hit", "miss", "hit"]
    texts = [await _texts(api, conversation) for conversation in (first, second)]
    assert texts == [["1", "one", "2", "two"]] * 2

    read_only = await _post(api, model, conversation=second, input="3", store=False)
    read_only_again = await _post(api, model, conversation=second, input="3", store=False)
    assert (read_only.headers["x-cache"], read_only_again.headers["x-cache"]) == ("miss", "hit")
    assert await _texts(api, second) == texts[1]
    assert (await _post(api, model, input="1", background=True, conversation=first)).headers[
        "x-cache"
    ] == "miss"


async def test_a_busy_conversation_is_not_answered_from_the_cache(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model, slow = fake.script(reply("known")), fake.script([wait_for(released), *reply("slow")])
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    await _post(api, model)
    running = await api.create_background(slow, conversation=conversation)
    refused = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": "Hello.", "cache": True, "conversation": conversation},
    )
    assert refused.error["code"] == "conversation_locked"
    released.set()
    await api.wait_for_end(running)


async def _texts(api: Api, conversation: str) -> list[str]:
    page = await api.call("GET", f"/conversations/{conversation}/items", params={"order": "asc"})
    return [item["content"][0]["text"] for item in page.body["data"]]
