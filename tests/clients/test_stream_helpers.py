"""The stream helpers of the official clients, while the worker of the response is killed.

The first attempt leaves items in the stream that are not in the final output (docs/wire.md). The
helpers find an item by its `output_index`, and parse structured output and arguments.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.clients.test_live import INSTALLED
from tests.conftest import PrivateStack
from tests.support.clients.catalogue import CLIENTS, CannotRun, install_client, run_lines
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    call,
    done,
    finish,
    hang,
    reasoning,
    text,
    usage,
)
from tests.support.stack import SHORT_LEASES, Stack

HALF_TEXT = [reasoning("hm"), text('{"name": '), hang()]
HALF_CALL = [
    text('{"name": "Bob"}'),
    call(0, "call_a", "look", '{"city": "Ulm"}'),
    call(1, "call_b", "look", '{"ci'),
    hang(),
]
WHOLE: Script = [
    text('{"name": ', '"Ada"}'),
    call(0, "call_c", "look", '{"city": ', '"Bonn"}'),
    finish("tool_calls"),
    usage(),
    done(),
]
CUT_OFF = {"in structured output": HALF_TEXT, "in the arguments of a call": HALF_CALL}
LAST_DELTA = {"in structured output": '{"name": ', "in the arguments of a call": '{"ci'}
SHOWN = {
    "in structured output": ["reasoning completed", "message incomplete"],
    "in the arguments of a call": [
        "message completed",
        "function_call completed",
        "function_call incomplete",
    ],
}
FINAL = ["message completed", "function_call completed"]


LOOK: FunctionToolParam = {
    "type": "function",
    "name": "look",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Person(BaseModel):
    """The structured output."""

    name: str


SHORT_AND_LONG = [
    pytest.param(cut, marks=pytest.mark.long if place else ()) for place, cut in enumerate(CUT_OFF)
]


@pytest.fixture
async def running(private_stack: PrivateStack) -> AsyncIterator[Stack]:
    async with private_stack(settings=SHORT_LEASES) as stack:
        yield stack


def _replace_worker(running: Stack) -> None:
    running.kill(running.workers[0])
    running.spawn_worker()


@pytest.mark.parametrize("cut", SHORT_AND_LONG)
async def test_the_python_helper_survives_a_kill(
    running: Stack, fake: FakeUpstream, cut: str
) -> None:
    model = fake.script(CUT_OFF[cut], WHOLE)
    shown: list[str] = []
    async with running.openai().responses.stream(
        model=model, input="Go.", text_format=Person, tools=[LOOK]
    ) as stream:
        async for event in stream:
            if event.type == "response.output_item.done":
                shown.append(f"{event.item.type} {getattr(event.item, 'status', None)}")
            if (
                getattr(event, "delta", None) == LAST_DELTA[cut]
                and len(fake.requests_for(model)) == 1
            ):
                _replace_worker(running)
        final = await stream.get_final_response()
    assert shown == SHOWN[cut] + FINAL
    assert final.output_parsed == Person(name="Ada")
    [_, made_call] = final.output
    assert made_call.type == "function_call"
    assert made_call.parsed_arguments == {"city": "Bonn"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cut", SHORT_AND_LONG)
async def test_the_node_helper_survives_a_kill(
    pytestconfig: pytest.Config, running: Stack, fake: FakeUpstream, cut: str
) -> None:
    if not pytestconfig.getoption("--live"):
        pytest.skip("installs the official client for Node; ./dev test tests/clients --live")
    client = next(one for one in CLIENTS if one.name == "openai-node")
    try:
        command = await install_client(client, INSTALLED, "openai_node_recovery.mjs")
    except CannotRun as reason:
        pytest.skip(str(reason))
    api = running.api()
    model = fake.script(CUT_OFF[cut], WHOLE)
    environment = {"OPENAI_BASE_URL": api.base_url, "OPENAI_API_KEY": api.key, "MODEL": model}
    shown: list[str] = []
    final: list[list[Any]] = []
    async for line in run_lines(command, environment):
        kind, _, content = line.partition(" ")
        if kind == "item":
            shown.append(content)
        elif kind == "final":
            final = json.loads(content)
        elif content == LAST_DELTA[cut] and len(fake.requests_for(model)) == 1:
            _replace_worker(running)
    assert shown == SHOWN[cut] + FINAL
    assert final == [["message", {"name": "Ada"}], ["function_call", {"city": "Bonn"}]]
