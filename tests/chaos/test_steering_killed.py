"""A worker is killed between the acceptance of a steer and its boundary: it is committed once."""

import asyncio

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.fake_upstream import (
    FakeUpstream,
    done,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, tool_turn

STEPS = {
    "before the ending": ("models.ownership.claims:end_steered:1:kill", 2),
    "the ending and the successor are stored": (
        "models.ownership.claims:end_steered:1:kill-after",
        1,
    ),
}
"""Where the worker is killed, and how often the first response's turn is then run."""


async def _steer(api: Api, response: str) -> None:
    answer = await api.call("POST", f"/responses/{response}/steer", {"input": "With it."})
    assert answer.body["state"] == "queued"


async def _successor(own_stack: Stack, api: Api, response: str) -> JSON:
    """The one response that has the steer as its input, when it has ended."""
    listed = await api.call("GET", f"/responses/{response}/steer")
    [steer] = listed.body["data"]
    assert steer["state"] == "committed"
    successor = await api.wait_for_end(steer["successor_response_id"])
    assert successor["output_text"] == "with it"
    count = "SELECT count(*) FROM responses WHERE previous_response_id = %s::uuid"
    assert await own_stack.value(count, response.removeprefix("resp_")) == 1
    return successor


@pytest.mark.parametrize(
    "step",
    [
        "before the ending",
        pytest.param("the ending and the successor are stored", marks=pytest.mark.long),
    ],
)
async def test_a_steer_outlives_the_worker_that_takes_it(
    private_stack: PrivateStack, fake: FakeUpstream, step: str
) -> None:
    fault, turns = STEPS[step]
    gate = asyncio.Event()
    held = [text("one "), wait_for(gate), text("two"), finish(), usage(), done()]
    model = fake.script(held, *[held] * (turns - 1), reply("with it"))
    async with private_stack(workers=0, settings=SHORT_LEASES) as own_stack:
        api = own_stack.api()
        killed = own_stack.spawn_faulty_worker(fault)
        response = await api.create_background(model)
        await until(lambda: fake.requests_for(model), 30)
        await _steer(api, response)
        gate.set()
        await until(lambda: not killed.running(), 30)
        own_stack.forget(killed)
        await own_stack.start_worker()
        assert (await api.wait_for_end(response))["status"] == "completed"
        await _successor(own_stack, api, response)
        requests = fake.requests_for(model)
        assert len(requests) == turns + 1
        assert requests[-1].texts[-1] == "With it."


@pytest.mark.long
async def test_a_steer_outlives_the_worker_whose_tool_runs(
    private_stack: PrivateStack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    """The next owner stops at the same boundary. The successor has the sealed credentials."""
    gate = mcp_servers.tool_calls.hold("steered")
    model = fake.script(
        tool_turn(("count_idempotent", "steered")),
        tool_turn(("count_idempotent", "by the successor")),
        reply("with it"),
    )
    settings = {**SHORT_LEASES, **TOOL_SETTINGS}
    async with private_stack(workers=1, settings=settings) as own_stack:
        api = own_stack.api()
        tools = [counting_server(mcp_servers)]
        response = await api.create_background(model, tools=tools)
        await until(lambda: mcp_servers.tool_calls.calls_with("steered"), 30)
        await _steer(api, response)
        own_stack.kill(own_stack.workers[0])
        gate.set()
        await own_stack.start_worker()
        ended = await api.wait_for_end(response)
        assert ended["incomplete_details"] == {"reason": "steered"}
        successor = await _successor(own_stack, api, response)
        assert [item["type"] for item in successor["output"]] == ["mcp_call", "message"]
        assert len(fake.requests_for(model)) == 3
