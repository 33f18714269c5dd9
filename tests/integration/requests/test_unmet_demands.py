"""An upstream ignores what the request demands: clients and operators see it (docs/output.md)."""

import asyncio

import pytest

from tests.integration.operator.test_operations import command_facts
from tests.support.api import JSON
from tests.support.fake_upstream import FakeUpstream, call, done, finish, reply, usage
from tests.support.stack import Stack
from tests.support.strict_types import check_response

LOOK: JSON = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SCHEMA: JSON = {
    "type": "json_schema",
    "name": "n",
    "schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": True,
}
DEMANDS: list[tuple[str, JSON]] = [
    ("tool_choice", {"tools": [LOOK], "tool_choice": "required"}),
    ("tool_choice", {"tools": [LOOK], "tool_choice": {"type": "function", "name": "look"}}),
    ("text.format", {"text": {"format": SCHEMA}}),
]


@pytest.mark.parametrize(("parameter", "body"), DEMANDS, ids=["required", "named", "schema"])
async def test_an_answer_without_what_was_demanded_says_so(
    shared_stack: Stack, fake: FakeUpstream, parameter: str, body: JSON
) -> None:
    api, model = shared_stack.api(), fake.script(reply("Sure!"))

    async def stream() -> JSON:
        async with api.post_stream(model, **body) as events:
            await events.to_end()
        return events.final

    async def poll() -> JSON:
        return await api.wait_for_end(await api.create_background(model, **body))

    for response in await asyncio.gather(api.create(model, **body), stream(), poll()):
        check_response(response)
        assert (response["status"], response["output_text"]) == ("completed", "Sure!")
        assert response["unmet_parameter"] == parameter
        assert await api.get(response["id"]) == response
    explained = await command_facts(shared_stack, "explain", response["id"])
    assert explained["timeline"][-1]["text"].startswith(
        f"ended as completed ({parameter.replace('.', '_')}_unmet)"
    )
    sdk_response = await shared_stack.openai().responses.create(model=model, input="Hi.", **body)
    assert sdk_response.output_text == "Sure!"


async def test_an_answer_with_what_was_demanded_says_nothing(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    called = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    for script, (_, body) in ((called, DEMANDS[0]), (reply("{}"), DEMANDS[2])):
        response = await shared_stack.api().create(fake.script(script), **body)
        assert "unmet_parameter" not in response


async def test_an_answer_without_what_was_demanded_is_not_cached(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Sure!"), reply("{}"))
    body = {**DEMANDS[2][1], "cache": {"ttl": 60}}
    texts = [(await shared_stack.api().create(model, **body))["output_text"] for _ in range(3)]
    assert texts == ["Sure!", "{}", "{}"]
