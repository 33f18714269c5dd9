"""What clients of a soak do: a mix of all ways to use a response."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bench.bodies import SHORT, body
from bench.deltas import DeltaReader
from bench.http_client import Client, RequestFailed
from bench.paced_upstream import CALL, model
from bench.resume import NumberReader

PLANS = (SHORT, model(20, 0.02, 0.1), model(100, 0.05, 0.2))
"""Answers at once, of half a second, and of five seconds."""
LONG = model(40, 0.05)
_POLL = 0.2
_TIMEOUT = 60.0
"""Seconds after which an action has failed."""
_FUNCTION = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": True,
}


class Unexpected(Exception):
    """A reply that is not what the action asked for."""


Action = Callable[["MixedLoad", Client], Awaitable[None]]


class MixedLoad:
    """Starts actions at a steady rate; each is of a kind drawn by weight."""

    def __init__(
        self, clients: list[Client], mix: Mapping[str, int], tool_url: str, seed: int
    ) -> None:
        """`clients`: of all web processes. `mix`: weights by name of ACTIONS. `tool_url`: of the
        MCP server."""
        self._clients = clients
        self._mix = mix
        self._tool_url = tool_url
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.skipped = 0
        """Actions that were not started, because too many were running."""

    async def run(self, seconds: float, rate: float, concurrency: int) -> None:
        """Starts `rate` actions a second, while fewer than `concurrency` run; returns when all have
        ended."""
        due = time.monotonic()
        end = due + seconds
        running: set[asyncio.Task[None]] = set()
        while due < end:
            if len(running) < concurrency:
                task = asyncio.create_task(self._act())
                running.add(task)
                task.add_done_callback(running.discard)
            else:
                self.skipped += 1
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*running)

    async def _act(self) -> None:
        [name] = self._random.choices(list(self._mix), list(self._mix.values()))
        client = self._random.choice(self._clients)
        try:
            async with asyncio.timeout(_TIMEOUT):
                await ACTIONS[name](self, client)
            self.done[name] += 1
        except (RequestFailed, Unexpected, TimeoutError, OSError) as error:
            self.failures.append(f"{name}: {type(error).__name__} {error}")

    def plan(self) -> str:
        """One of the plans of the upstream."""
        return self._random.choice(PLANS)

    async def call_server_tool(self, client: Client) -> None:
        """A response whose tool runs in the worker."""
        tool = {
            "type": "mcp",
            "server_label": "bench",
            "server_url": self._tool_url,
            "require_approval": "never",
        }
        response = await create(client, body(CALL, tools=[tool]))
        _expect(response, "completed")
        if "mcp_call" not in {item["type"] for item in response["output"]}:
            raise Unexpected("no tool was called")


async def create(client: Client, content: dict[str, Any]) -> Any:
    """The response that a create replies with."""
    return await client.json("POST", "/v1/responses", content)


async def _poll(load: MixedLoad, client: Client) -> None:
    """A background response that is polled until its end."""
    response = await create(client, body(load.plan(), background=True))
    _expect(await _ended(client, response["id"]), "completed")


async def _ended(client: Client, response_id: str) -> Any:
    while True:
        response = await client.json("GET", f"/v1/responses/{response_id}")
        if response["status"] not in {"queued", "in_progress"}:
            return response
        await asyncio.sleep(_POLL)


async def _stream(load: MixedLoad, client: Client) -> None:
    """A foreground stream."""
    reader = DeltaReader()
    plan = load.plan()
    request = client.encode("POST", "/v1/responses", body(plan, stream=True))
    await client.stream(request, reader.feed)
    if len(reader.lags) != int(plan.partition("x")[0]):
        raise Unexpected(f"{len(reader.lags)} deltas of {plan}")


async def _leave(load: MixedLoad, client: Client) -> None:
    """A foreground stream whose client leaves."""
    del load
    reader = NumberReader()
    request = client.encode("POST", "/v1/responses", body(LONG, stream=True))
    await reader.read(client, request, 10)


async def _resume(load: MixedLoad, client: Client) -> None:
    """A stream that is left and read on."""
    del load
    reader = NumberReader()
    content = body(LONG, stream=True, background=True)
    await reader.read(client, client.encode("POST", "/v1/responses", content), 10)
    path = f"/v1/responses/{reader.id}?stream=true&starting_after={reader.numbers[-1]}"
    await reader.read(client, client.encode("GET", path), None)
    if not reader.has_ended or reader.numbers != list(range(len(reader.numbers))):
        raise Unexpected(f"{reader.id}: numbers are missing or repeated")


async def _cancel(load: MixedLoad, client: Client) -> None:
    """A background response that is cancelled."""
    del load
    response = await create(client, body(LONG, background=True))
    await asyncio.sleep(_POLL)
    await client.json("POST", f"/v1/responses/{response['id']}/cancel")
    _expect(await _ended(client, response["id"]), "cancelled")


async def _delete(load: MixedLoad, client: Client) -> None:
    """A response that is deleted after its end."""
    response = await create(client, body(load.plan()))
    _expect(response, "completed")
    await client.json("DELETE", f"/v1/responses/{response['id']}")


async def _converse(load: MixedLoad, client: Client) -> None:
    """Three turns in a conversation, which is then deleted."""
    del load
    conversation = await client.json("POST", "/v1/conversations", {})
    for _ in range(3):
        _expect(await create(client, body(SHORT, conversation=conversation["id"])), "completed")
    await client.json("DELETE", f"/v1/conversations/{conversation['id']}")


async def _call_client_tool(load: MixedLoad, client: Client) -> None:
    """A response that calls a function of the client, and its continuation."""
    del load
    first = await create(client, body(CALL, tools=[_FUNCTION]))
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    content = body(SHORT, previous_response_id=first["id"]) | {"input": [output]}
    _expect(await create(client, content), "completed")


def _expect(response: Any, status: str) -> None:
    if response["status"] != status:
        raise Unexpected(f"{response['id']} is {response['status']}, not {status}")


ACTIONS: dict[str, Action] = {
    "poll": _poll,
    "stream": _stream,
    "leave": _leave,
    "resume": _resume,
    "cancel": _cancel,
    "delete": _delete,
    "converse": _converse,
    "client-tool": _call_client_tool,
    "server-tool": MixedLoad.call_server_tool,
}
MIX = {
    "poll": 6,
    "stream": 6,
    "leave": 1,
    "resume": 2,
    "cancel": 1,
    "delete": 2,
    "converse": 1,
    "client-tool": 1,
    "server-tool": 2,
}
"""How often each action is drawn, unless the caller says otherwise."""
