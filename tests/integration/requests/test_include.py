"""`include` on every route that takes it: what each value adds, and that every value is accepted.

The values and what they do here: docs/wire.md.
"""

import pytest

from models.wire.request import require_include
from tests.support.api import JSON, Api
from tests.support.fake_upstream import FakeUpstream, delta, done, finish, reasoning, reply, usage

VALUES = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SCREENSHOT: JSON = {"type": "computer_screenshot", "image_url": IMAGE}
HISTORY: list[JSON] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "See."},
            {"type": "input_image", "image_url": IMAGE},
        ],
    },
    {
        "type": "file_search_call",
        "id": "fs_1",
        "queries": ["x"],
        "status": "completed",
        "results": [{"file_id": "file_1", "text": "found"}],
    },
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "code": "1",
        "container_id": "c",
        "status": "completed",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    {
        "type": "computer_call",
        "call_id": "call_c",
        "action": {"type": "screenshot"},
        "pending_safety_checks": [],
        "status": "completed",
    },
    {"type": "computer_call_output", "call_id": "call_c", "output": SCREENSHOT},
    {"type": "reasoning", "summary": [], "encrypted_content": "the client's own data"},
    {"role": "user", "content": "And?"},
]


def token(text: str) -> JSON:
    return {
        "content": [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}
        ]
    }


@pytest.mark.parametrize("value", VALUES)
async def test_every_value_is_accepted_by_every_route(
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


async def test_items_that_a_client_sent_are_listed_whole_with_and_without_include(
    api: Api, fake: FakeUpstream
) -> None:
    """Image addresses, results of client tools, sealed reasoning: clients send them back."""
    created = await api.create(fake.script(reply("x")), input=HISTORY)
    plain = await api.call(
        "GET", f"/responses/{created['id']}/input_items", params={"order": "asc"}
    )
    with_include = await api.call(
        "GET",
        f"/responses/{created['id']}/input_items",
        params=[("order", "asc"), *(("include[]", value) for value in VALUES)],
    )
    assert plain.body == with_include.body
    image_message, file_search, code_run, _, screenshot, reasoning_item, _ = plain.body["data"]
    assert image_message["content"][1]["image_url"] == screenshot["output"]["image_url"] == IMAGE
    assert file_search["results"] == HISTORY[1]["results"]
    assert code_run["outputs"] == HISTORY[2]["outputs"]
    assert reasoning_item["encrypted_content"] == "the client's own data"
    continued = await api.create(fake.script(reply("x")), input=plain.body["data"])
    assert continued["status"] == "completed"


async def test_log_probabilities_are_returned_only_if_included_at_create(
    api: Api, fake: FakeUpstream
) -> None:
    script = [delta({"content": "Hi"}, logprobs=token("Hi")), finish(), usage(), done()]
    model, plain_model = fake.script(script), fake.script(script)
    with_logprobs = await api.create(
        model, include=["message.output_text.logprobs"], top_logprobs=2
    )
    without_logprobs = await api.create(plain_model, top_logprobs=2)
    assert [entry["token"] for entry in with_logprobs["output"][0]["content"][0]["logprobs"]] == [
        "Hi"
    ]
    assert without_logprobs["output"][0]["content"][0]["logprobs"] == []
    assert (
        fake.requests_for(model)[0].body["logprobs"],
        fake.requests_for(model)[0].body["top_logprobs"],
    ) == (
        True,
        2,
    )
    assert not {"logprobs", "top_logprobs"} & set(fake.requests_for(plain_model)[0].body)
    later = await api.call(
        "GET",
        f"/responses/{without_logprobs['id']}",
        params={"include": "message.output_text.logprobs"},
    )
    assert later.body == without_logprobs


async def test_without_a_secret_key_encrypted_content_is_left_out(
    api: Api, fake: FakeUpstream
) -> None:
    """The shared deployment has no secret key."""
    created = await api.create(
        fake.script([reasoning("hm"), *reply("x")]), include=["reasoning.encrypted_content"]
    )
    assert "encrypted_content" not in created["output"][0]


async def test_a_prompt_template_is_refused_with_a_clear_message(
    api: Api, fake: FakeUpstream
) -> None:
    """It is a template stored at OpenAI: without it the model would answer another question."""
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
