"""Answers that are cut off, empty or not OpenAI's, over HTTP: each ends with a word about it."""

import json

from tests.support.api import JSON, Api
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    chunk,
    delta,
    done,
    finish,
    raw,
    text,
)
from tests.support.process_logs import line_of
from tests.support.stack import Stack
from tests.support.strict_types import check_response

PICTURE = "iVBORw0K" * 50_000
"""Larger than a frame that is published."""


async def ended(api: Api, fake: FakeUpstream, *steps: Step) -> JSON:
    """The response, the same as a stream and by GET."""
    async with api.post_stream(fake.script([*steps, done()])) as stream:
        assert_stream_obeys_contract(await stream.to_end())
    response = await api.get(stream.response_id)
    check_response(response)
    assert response["status"] == stream.final["status"]
    return response


async def test_an_unknown_reason_keeps_the_text(api: Api, fake: FakeUpstream) -> None:
    word = "out_of_upstream-secret"
    response = await ended(api, fake, text("Hello."), finish(word))
    assert (response["status"], response["output_text"]) == ("failed", "Hello.")
    assert "'out_of_" in response["error"]["message"]
    assert "secret" not in response["error"]["message"]


async def test_a_full_context_is_incomplete(api: Api, fake: FakeUpstream) -> None:
    response = await ended(api, fake, text("Hel"), finish("model_context_window_exceeded"))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_half_a_call_is_never_completed(api: Api, fake: FakeUpstream) -> None:
    response = await ended(api, fake, call(0, "call_1", "f", '{"a": "hal'), finish("tool_calls"))
    assert response["status"] == "failed"
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert "'f'" in response["error"]["message"]


async def test_a_foreground_client_gets_an_error_for_an_empty_answer(
    api: Api, fake: FakeUpstream
) -> None:
    body = {"model": fake.script([finish(), done()]), "input": "Hello."}
    answer = await api.call("POST", "/responses", body)
    assert (answer.status, answer.body["error"]["type"]) == (502, "server_error")


async def test_a_picture_is_an_item_that_a_client_can_send_back(
    api: Api, fake: FakeUpstream
) -> None:
    picture = delta(
        {
            "images": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
            ]
        }
    )
    response = await ended(api, fake, text("Here."), picture, finish())
    message, image = response["output"]
    assert (image["type"], image["result"]) == ("image_generation_call", PICTURE)
    again = fake.script([text("Yes."), finish(), done()])
    user = {"role": "user", "content": "Again"}
    copied = await api.create(again, input=[message, image, user])
    chained = await api.create(again, input="Again", previous_response_id=response["id"])
    assert (copied["status"], chained["status"]) == ("completed", "completed")


async def test_usage_has_the_reasoning_that_a_vendor_counts_beside_the_output(
    api: Api, fake: FakeUpstream
) -> None:
    counts = {
        "prompt_tokens": 12,
        "completion_tokens": 2,
        "total_tokens": 331,
        "completion_tokens_details": {"reasoning_tokens": 317},
    }
    response = await ended(api, fake, text("Hi"), finish(), chunk({"choices": [], "usage": counts}))
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, 319, 331)
    assert usage["output_tokens_details"]["reasoning_tokens"] == 317


async def test_a_field_that_has_the_whole_answer_is_named(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    response = await ended(api, fake, delta({"text_of_next_year": "Hi"}), finish())
    assert response["status"] == "failed"
    assert "delta.text_of_next_year" in response["error"]["message"]
    line = await line_of(
        shared_stack.workers[0], "unknown_content", field="delta.text_of_next_year"
    )
    assert line["upstream"] == "default"


async def test_half_a_character_at_the_end_is_replaced(api: Api, fake: FakeUpstream) -> None:
    pieces = ("a\ud83d", "\ude00b", "c\ud83d")
    chunks = ({"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces)
    steps = [raw(b"data: " + json.dumps(each).encode() + b"\n\n") for each in chunks]
    response = await ended(api, fake, *steps, finish())
    assert response["output_text"] == "a😀bc\ufffd"
