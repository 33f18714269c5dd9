"""`include` in every place that takes it (contract §2.1): what each value brings, and that none of them is in anybody's way."""

import pytest

from models.wire.request import require_include
from tests.support.api import JSON, Api
from tests.support.fake_upstream import FakeUpstream, delta, done, finish, reasoning, reply, usage

VALUES = [
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs",
]  # fmt: skip
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SHOT: JSON = {"type": "computer_screenshot", "image_url": IMAGE}
HISTORY: list[JSON] = [
    {"role": "user", "content": [{"type": "input_text", "text": "See."}, {"type": "input_image", "image_url": IMAGE}]},
    {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "status": "completed", "results": [{"file_id": "file_1", "text": "found"}]},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "status": "completed", "outputs": [{"type": "logs", "logs": "1"}]},
    {"type": "computer_call", "call_id": "call_c", "action": {"type": "screenshot"}, "pending_safety_checks": [], "status": "completed"},
    {"type": "computer_call_output", "call_id": "call_c", "output": SHOT},
    {"type": "reasoning", "summary": [], "encrypted_content": "a client's own blob"},
    {"role": "user", "content": "And?"},
]  # fmt: skip


def token(text: str) -> JSON:
    return {
        "content": [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}
        ]
    }


@pytest.mark.parametrize("value", VALUES)
async def test_every_value_is_taken_by_every_route(
    api: Api, fake: FakeUpstream, value: str
) -> None:
    require_include([value])
    created = await api.create(fake.script(reply("x")), input=HISTORY, include=[value])
    for path in (f"/responses/{created['id']}", f"/responses/{created['id']}/input_items"):
        for name in ("include[]", "include"):
            answer = await api.call("GET", path, params=[(name, value), (name, VALUES[0])])
            assert answer.status == 200, answer.raw
            if path.endswith(created["id"]):
                assert answer.body == created


async def test_what_a_client_has_sent_is_listed_whole_whether_or_not_it_asks(
    api: Api, fake: FakeUpstream
) -> None:
    """Addresses of images, results of tools that ran elsewhere, sealed reasoning: what is listed is meant to be sent back."""
    created = await api.create(fake.script(reply("x")), input=HISTORY)
    plain = await api.call(
        "GET", f"/responses/{created['id']}/input_items", params={"order": "asc"}
    )
    asked = await api.call(
        "GET",
        f"/responses/{created['id']}/input_items",
        params=[("order", "asc"), *(("include[]", value) for value in VALUES)],
    )
    assert plain.body == asked.body
    seen, found, ran, _, shot, thought, _ = plain.body["data"]
    assert seen["content"][1]["image_url"] == shot["output"]["image_url"] == IMAGE
    assert found["results"] == HISTORY[1]["results"]
    assert ran["outputs"] == HISTORY[2]["outputs"]
    assert thought["encrypted_content"] == "a client's own blob"
    again = await api.create(fake.script(reply("x")), input=plain.body["data"])
    assert again["status"] == "completed"


async def test_log_probabilities_come_only_to_who_asked_at_the_start(
    api: Api, fake: FakeUpstream
) -> None:
    said = [delta({"content": "Hi"}, logprobs=token("Hi")), finish(), usage(), done()]
    asked, plain = fake.script(said), fake.script(said)
    told = await api.create(asked, include=["message.output_text.logprobs"], top_logprobs=2)
    silent = await api.create(plain, top_logprobs=2)
    assert [entry["token"] for entry in told["output"][0]["content"][0]["logprobs"]] == ["Hi"]
    assert silent["output"][0]["content"][0]["logprobs"] == []
    assert (
        fake.requests_for(asked)[0].body["logprobs"],
        fake.requests_for(asked)[0].body["top_logprobs"],
    ) == (
        True,
        2,
    )
    assert not {"logprobs", "top_logprobs"} & set(fake.requests_for(plain)[0].body)
    later = await api.call(
        "GET", f"/responses/{silent['id']}", params={"include": "message.output_text.logprobs"}
    )
    assert later.body == silent


async def test_what_this_deployment_cannot_seal_is_not_there(api: Api, fake: FakeUpstream) -> None:
    """The shared deployment has no key."""
    created = await api.create(
        fake.script([reasoning("hm"), *reply("x")]), include=["reasoning.encrypted_content"]
    )
    assert "encrypted_content" not in created["output"][0]


async def test_a_prompt_is_refused_in_clear_words(api: Api, fake: FakeUpstream) -> None:
    """It is a template stored at OpenAI; to leave it out in silence would be to answer another question."""
    model = fake.script(reply("never"))
    for prompt in (
        {"id": "pmpt_1"},
        {"id": "pmpt_1", "version": "2", "variables": {"city": "Bonn"}},
        "pmpt_1",
        3,
    ):
        for more in ({}, {"stream": True}, {"background": True}):
            answer = await api.call(
                "POST", "/responses", {"model": model, "input": "x", "prompt": prompt, **more}
            )
            assert answer.status == 400
            assert (answer.error["param"], answer.error["code"]) == (
                "prompt",
                "unsupported_parameter",
            )
            assert "keeps no prompt templates" in answer.error["message"]
    assert fake.requests_for(model) == []
