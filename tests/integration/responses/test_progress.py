"""`progress` of an open response, as the official client sees it (docs/background.md)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import openai
import pytest

from tests.support import keys
from tests.support.api import until
from tests.support.console import console_user
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    reply,
    status,
    text,
    usage,
    wait_for,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.strict_types import check_response
from tests.support.tool_turns import counting_server, tool_turn

POLL_AFTER = "openai-poll-after-ms"


async def _progress(client: openai.AsyncOpenAI, response_id: str) -> Any:
    """What a GET shows; None: the response has ended."""
    raw = await client.responses.with_raw_response.retrieve(response_id)
    response = raw.parse()
    check_response(json.loads(raw.text))
    progress = (response.model_extra or {}).get("progress")
    is_open = response.status in ("queued", "in_progress")
    assert (progress is not None, POLL_AFTER in raw.headers) == (is_open, is_open)
    return progress


@asynccontextmanager
async def _created(client: openai.AsyncOpenAI, model: str, **fields: Any) -> AsyncIterator[str]:
    """A background response, which has ended behind this."""
    made = await client.responses.create(model=model, input="x", background=True, **fields)
    try:
        yield made.id
    finally:
        with suppress(openai.BadRequestError):  # it has ended by itself
            await client.responses.cancel(made.id)


async def test_a_running_response_shows_its_turns_tool_calls_and_tokens(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    client, may_end = tool_stack.openai(), asyncio.Event()
    gates = [mcp_servers.tool_calls.hold(f"progress-{name}") for name in "ab"]
    calls = [
        call(number, f"call_{number}", "count_read_only", json.dumps({"key": f"progress-{name}"}))
        for number, name in enumerate("ab")
    ]
    model = fake.script(
        [*calls, finish("tool_calls"), usage(completion=70), done()],
        [text("The answer, ", "so far."), wait_for(may_end), finish(), usage(), done()],
    )
    tool = {
        "type": "mcp",
        "server_label": "it",
        "server_url": mcp_servers.url("counting"),
        "require_approval": "never",
    }
    async with _created(client, model, tools=[tool]) as response_id:

        async def shows(done: int, running: int, tokens: int, estimated: int) -> bool:
            expected = {
                "turns": 1,
                "tool_calls": {"done": done, "open": running},
                "output_tokens": tokens,
                "estimated_output_tokens": estimated,
                "attempts": 1,
                "waits_for": None,
            }
            shown: object = await _progress(client, response_id)
            return shown == expected

        # The stream holds the second call back behind the first one.
        await until(lambda: shows(0, 2, 70, 0))
        gates[1].set()
        await until(lambda: shows(1, 1, 70, 0))
        gates[0].set()
        await until(lambda: shows(2, 0, 70 + 5, 5))
        stranger = tool_stack.openai(key=keys.create(tool_stack.dsn, "stranger"))
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.retrieve(response_id)
        may_end.set()

        async def has_ended() -> bool:
            return await _progress(client, response_id) is None

        await until(has_ended)


async def test_an_operator_sees_how_long_each_call_took(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(tool_turn(("count_read_only", "a")), reply("Counted."))
    made = await tool_stack.api().create(model, tools=[counting_server(mcp_servers)])
    async with console_user(tool_stack) as user:
        user.headers = {"x-forwarded-user": "ada", "x-forwarded-groups": "support"}
        page = await user.get(f"/console/responses/{made['id']}")
    bars = re.findall(r'<li class="(\w+)"><span class="label" title="([^"]*)"', page.html)
    assert bars == [
        ("line", "In line"),
        ("tool", "counting: mcp list tools"),
        ("turn", "Turn 1"),
        ("tool", "counting: count_read_only"),
        ("turn", "Turn 2"),
    ]


async def test_a_deferred_response_shows_since_when_and_why_it_waits(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([status(503)])
    async with _created(client, model) as response_id:
        seen = []

        async def waits() -> bool:
            progress = await _progress(client, response_id)
            wait = progress["waits_for"] or {}
            if wait.get("type") == "upstream":
                seen.append((progress["attempts"], wait))
            return bool(seen) and seen[-1][0] > 1

        await until(waits)
        for attempts, wait in seen:
            assert wait["tries"] == attempts
            assert wait["last_error"].endswith("HTTP 503: The fake upstream says 503.")
            assert wait["since"] <= wait["next_try_at"] <= wait["since"] + 60
        times = [wait["since"] for _, wait in seen]
        assert max(times) - min(times) <= 2, times
