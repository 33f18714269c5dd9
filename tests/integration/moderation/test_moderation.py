"""Moderation by a route: what reaches the upstream and the readers, and what the response says."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    call,
    done,
    finish,
    reply,
    status,
    text,
    wait_for,
)
from tests.support.images import b64, png
from tests.support.stack import SHORT_LEASES
from tests.support.strict_types import check_event, check_response

BAD = "poison"
"""What the guard flags."""
GUARD = "guard"


def judged(value: Any, **fields: Any) -> JSON:
    """The answer of a moderation model that flags a word, and images of more than a kilobyte."""
    flagged = BAD in value if isinstance(value, str) else len(json.dumps(value)) > 3000
    result = {
        "flagged": flagged,
        "categories": {"harm": flagged},
        "category_scores": {"harm": 0.9 if flagged else 0.1},
        "category_applied_input_types": {"harm": ["text" if isinstance(value, str) else "image"]},
    }
    return {"id": "modr-1", "model": GUARD, "results": [result], **fields}


def guard(request: UpstreamRequest) -> Script:
    """The script of the moderation model."""
    return [status(200, judged(request.body["input"]))]


@pytest.fixture
def guarded(fake: FakeUpstream) -> FakeUpstream:
    """The fake upstream, with a moderation model."""
    fake.decide(GUARD, guard)
    return fake


def wanted(input_mode: str = "block", output_mode: str = "block") -> Any:
    """The request parameter."""
    modes = {"input": {"mode": input_mode}, "output": {"mode": output_mode}}
    return {"model": GUARD, "policy": modes}


def asked(fake: FakeUpstream) -> list[Any]:
    """What the moderation model was sent."""
    return [request.body["input"] for request in fake.requests_for(GUARD)]


async def test_the_official_client_gets_scores(
    client: openai.AsyncOpenAI, guarded: FakeUpstream
) -> None:
    model = guarded.script(reply(f"Some {BAD}."))
    before = len(asked(guarded))
    response = await client.responses.create(
        model=model, input=f"Which {BAD}?", moderation={"model": GUARD}
    )
    assert (response.status, response.output_text) == ("completed", f"Some {BAD}.")
    assert response.moderation is not None
    assert response.moderation.input.type == "moderation_result"
    assert response.moderation.output.type == "moderation_result"
    assert response.moderation.input.flagged
    assert response.moderation.output.category_scores == {"harm": 0.9}
    assert asked(guarded)[before:] == [f"Which {BAD}?", f"Some {BAD}."]
    assert "moderation" not in guarded.requests_for(model)[0].body


@pytest.mark.parametrize("background", [True, False])
async def test_flagged_input_reaches_no_upstream(
    api: Api, guarded: FakeUpstream, background: bool
) -> None:
    model = guarded.script(reply("never"))
    parts = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": _url(4)}]
    for given in (f"Which {BAD}?", [{"role": "user", "content": parts}]):
        body = {"model": model, "input": given, "moderation": wanted()}
        answer = await api.call("POST", "/responses", body | {"background": background})
        response = await api.wait_for_end(answer.body["id"])
        check_response(response)
        assert response["incomplete_details"] == {"reason": "content_filter"}
        assert response["moderation"]["input"]["flagged"]
        assert response["moderation"]["output"]["code"] == "not_moderated"
        assert response["output"] == []
    assert not guarded.requests_for(model)


def _url(kilobytes: int) -> str:
    return f"data:image/png;base64,{b64(png(size=kilobytes))}"


async def test_flagged_output_reaches_no_reader_and_what_came_before_does(
    api: Api, guarded: FakeUpstream
) -> None:
    harmless = ["All is well. " * 10] * 6
    model = guarded.script(
        [text(*harmless, f"Now some {BAD}.", " More.", gap=0.05), finish(), done()]
    )
    async with api.post_stream(model, background=True, moderation=wanted()) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    final = stream.final
    assert final["incomplete_details"] == {"reason": "content_filter"}
    assert final["moderation"]["output"]["flagged"]
    [message] = final["output"]
    seen = message["content"][0]["text"]
    assert message["status"] == "incomplete"
    assert 400 <= len(seen) < len("".join(harmless))
    assert "".join(harmless).startswith(seen)
    stored = [*events, *map(decode, await api.replay(stream.response_id))]
    assert BAD not in json.dumps([stored, await api.get(stream.response_id)])


async def test_what_was_blocked_is_not_sent_with_a_later_response(
    api: Api, guarded: FakeUpstream
) -> None:
    """What has passed is judged once."""
    model = guarded.script(reply("Good day to you."))
    first = await api.create(model, input="A rose", moderation=wanted())
    before = len(asked(guarded))
    second = await api.create(
        model, input="A tulip", previous_response_id=first["id"], moderation=wanted()
    )
    assert second["status"] == "completed"
    assert asked(guarded)[before:] == ["Good day to you.\nA tulip", "Good day to you."]
    blocked = await api.create(
        model, input=BAD, previous_response_id=second["id"], moderation=wanted()
    )
    later = await api.create(
        model, input="Go on", previous_response_id=blocked["id"], moderation=wanted()
    )
    assert (blocked["status"], later["status"]) == ("incomplete", "incomplete")
    assert len(guarded.requests_for(model)) == 2


async def test_calls_and_reasoning_are_held_back_too(api: Api, guarded: FakeUpstream) -> None:
    arguments = json.dumps({"city": BAD})
    model = guarded.script([call(0, "call_1", "weather", arguments), finish("tool_calls"), done()])
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    response = await api.create(model, tools=[tool], moderation=wanted())
    assert (response["status"], response["output"]) == ("incomplete", [])


async def test_what_passes_is_the_same_stream_and_usage_as_without(
    api: Api, guarded: FakeUpstream
) -> None:
    pieces = [f"Sentence {number} of many. " for number in range(60)]
    model = guarded.script(reply(*pieces))
    plain, held = [
        await _texts(api, model, **more) for more in ({}, {"moderation": wanted("score")})
    ]
    assert held == plain


async def _texts(api: Api, model: str, **body: Any) -> tuple[str, JSON]:
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    return "".join(deltas), stream.final["usage"]


RUDE: dict[str, Callable[[UpstreamRequest], Script]] = {
    "an error of its own": lambda _: [status(500)],
    "no JSON": lambda _: [status(200, b"<html>")],
    "no results": lambda _: [status(200, {"results": []})],
    "a list": lambda _: [status(200, b"[]")],
    "results that say nothing": lambda _: [status(200, {"results": [{"categories": {"a": 0.5}}]})],
    "no such model": lambda _: [status(404)],
}


@pytest.mark.parametrize("answers", RUDE.values(), ids=RUDE)
async def test_without_a_result_nothing_passes_that_was_to_be_blocked(
    api: Api, fake: FakeUpstream, answers: Callable[[UpstreamRequest], Script]
) -> None:
    fake.decide("rude", answers)
    model = fake.script(reply("Hello."))
    body = {"model": model, "input": "Hi.", "moderation": {"model": "rude"}}
    scored = (await api.call("POST", "/responses", body)).body
    check_response(scored)
    assert scored["status"] == "completed"
    assert {each["type"] for each in scored["moderation"].values()} == {"error"}
    body["moderation"] = wanted() | {"model": "rude"}
    answer = await api.call("POST", "/responses", body)
    assert answer.status == 502, answer.raw
    assert len(fake.requests_for(model)) == 1


async def test_a_guard_that_fails_is_no_failure_of_the_models_upstream(
    api: Api, fake: FakeUpstream
) -> None:
    """Five failures in a row would open its circuit."""

    def fails_at_output(request: UpstreamRequest) -> Script:
        is_input = request.body["input"] == "Hi."
        return [status(200, judged("")) if is_input else status(500)]

    fake.decide("half", fails_at_output)
    model = fake.script(reply("Hello."))
    body = {"model": model, "input": "Hi.", "moderation": wanted() | {"model": "half"}}
    for _ in range(6):
        assert (await api.call("POST", "/responses", body)).status == 502
    assert (await api.create(model))["status"] == "completed"
    assert len(fake.requests_for(model)) == 7


async def test_a_guard_that_is_busy_is_called_again(api: Api, fake: FakeUpstream) -> None:
    """By the upstream's client at once, and later by a response that may wait."""
    passes = [status(200, judged("Hi."))]
    for retry in (True, False):
        busy = status(429, headers={"retry-after": "1"}, retry=retry)
        guard_model = fake.script([busy], passes, passes)
        model = fake.script(reply("Hello."))
        moderation = wanted() | {"model": guard_model}
        response_id = await api.create_background(model, moderation=moderation)
        response = await api.wait_for_end(response_id, within=30)
        assert response["status"] == "completed", response
        assert [each["flagged"] for each in response["moderation"].values()] == [False, False]
        assert len(fake.requests_for(model)) == 1


async def test_leaner_answers_are_understood(api: Api, fake: FakeUpstream) -> None:
    fake.decide(
        "lean",
        lambda request: [
            status(200, {"results": [{"categories": {"S1": BAD in request.body["input"]}}] * 2})
        ],
    )
    model = fake.script(reply("Hello."))
    for given, state in ((f"A {BAD}", "incomplete"), ("A rose", "completed")):
        body = {"model": model, "input": given, "moderation": wanted() | {"model": "lean"}}
        response = (await api.call("POST", "/responses", body)).body
        check_response(response)
        assert response["status"] == state


async def test_what_cannot_be_moderated_is_refused(api: Api, guarded: FakeUpstream) -> None:
    model = guarded.script(reply("never"))
    file = {
        "type": "input_file",
        "filename": "a",
        "file_data": "data:application/pdf;base64,",
    }
    cases: list[tuple[JSON, str, str]] = [
        (
            {"moderation": wanted(), "input": [{"role": "user", "content": [file]}]},
            "input[0].content[0]",
            "invalid_value",
        ),
        ({"moderation": {}}, "moderation.model", "missing_required_parameter"),
        (
            {"moderation": {"model": GUARD, "policy": {"input": {"mode": "hide"}}}},
            "moderation.policy.input.mode",
            "invalid_value",
        ),
    ]
    for body, param, code in cases:
        answer = await api.call("POST", "/responses", {"model": model, "input": "x", **body})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code)
    assert not guarded.requests_for(model)


@pytest.mark.long
async def test_a_killed_worker_leaves_nothing_that_was_held_back(
    private_stack: PrivateStack, guarded: FakeUpstream
) -> None:
    """Its successor has the input and the stored output judged again, and the turn begins anew."""
    held = asyncio.Event()
    async with private_stack(settings=SHORT_LEASES) as running:
        api = running.api()
        first = [text("x" * 600, f"Then {BAD}", gap=0.1), wait_for(held)]
        model = guarded.script(first, reply("A better answer."))
        response_id = await api.create_background(model, moderation=wanted())
        async with api.follow(response_id) as stream:
            await stream.until("response.output_text.delta")
        running.kill(running.workers[-1])
        await running.start_worker()
        ended = await api.wait_for_end(response_id, within=40)
        assert ended["status"] == "completed"
        assert not ended["moderation"]["output"]["flagged"]
        frames = [decode(frame) for frame in await api.replay(response_id)]
        assert_stream_obeys_contract(frames)
        assert BAD not in json.dumps([ended, frames])
    held.set()
