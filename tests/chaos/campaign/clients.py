"""The clients of a round: each creates its response and reads it as the plan says."""

import asyncio
import itertools
from typing import Any

from tests.chaos.audit.record import ResponseTrace
from tests.chaos.campaign.plan import Client
from tests.support.api import TERMINAL
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import (
    Exchange,
    Script,
    Step,
    drop,
    hang,
    reply,
    reset,
    status,
    text,
)
from tests.support.mcp_servers import McpServers
from tests.support.tool_turns import counting_server, tool_turn

_TRIES = 4
"""How often a client sends a create that is answered 503, a second apart."""
_ATTEMPTS = 6
"""Upstream requests of one response that get different words; later ones repeat the last."""


class PlannedClients:
    """The clients of a round."""

    def __init__(self, clients: RecordedClients, seed: int, mcp: McpServers | None) -> None:
        """`mcp`: the servers of tools, None without tools."""
        self._clients = clients
        self._mcp = mcp
        self._seed = seed
        self._parents: list[ResponseTrace] = []
        """Background responses that no client deletes."""

    async def run(self, number: int, client: Client) -> None:
        """Does everything that the clients of one response do."""
        await asyncio.sleep(client.at)
        trace = await self._create(number, client)
        if trace.id is None or not trace.background:
            return
        if client.delete is None:
            self._parents.append(trace)
        if client.kind != "streamed":
            self._clients.start_poller(trace)
        for disconnects in client.readers:
            self._clients.start_reader(trace, disconnects)
        if client.read_pause:
            self._clients.start_reader(trace, pause=client.read_pause)
        await asyncio.gather(self._cancel(trace, client.cancel), self._delete(trace, client.delete))

    async def _create(self, number: int, client: Client) -> ResponseTrace:
        """Sends the create, again after a 503; returns the last try."""
        previous = await self._parent() if client.kind == "chained" else None
        for attempt in range(_TRIES):
            marker = f"r{self._seed}-{number}-{attempt}"
            trace = await self._clients.create(
                *self._scripts(number, client, marker),
                background=not client.kind.startswith("foreground"),
                stream=client.kind in ("streamed", "foreground stream"),
                previous=previous,
                disconnect_after=client.disconnects,
                marker=marker,
                turns=1 + len(client.tools),
                **self._tools(client),
            )
            if trace.create.status != 503:
                break
            await asyncio.sleep(1)
        return trace

    def _scripts(self, number: int, client: Client, marker: str) -> list[Script]:
        """The upstream's answers; with tools they depend on the turns in the request."""
        if self._mcp is None or not client.tools:
            return _scripts(number, client)
        turns = []
        for turn, tools in enumerate(client.tools):
            keys = [f"{marker}/{turn}.{index}" for index in range(len(tools))]
            for key in keys if client.tool_delay else []:
                asyncio.get_running_loop().call_later(
                    client.tool_delay, self._mcp.tool_calls.hold(key).set
                )
            turns.append(tool_turn(*zip(tools, keys, strict=True)))
        return [[_by_turn(turns, _scripts(number, client))]]

    def _tools(self, client: Client) -> dict[str, Any]:
        if self._mcp is None or not client.tools:
            return {}
        return {"tools": [counting_server(self._mcp)]}

    async def _parent(self) -> ResponseTrace | None:
        """Returns an earlier response that a GET showed as ended; None if there is none."""
        for trace in self._parents:
            request = await self._clients.get(trace)
            if request.status == 200 and request.body["status"] in TERMINAL:
                return trace
        return None

    async def _cancel(self, trace: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.cancel(trace)

    async def _delete(self, trace: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.delete(trace)


def _by_turn(turns: list[list[Step]], last: list[Script]) -> Step:
    """Sends the n-th turn if the request has n turns with calls after the last user message."""
    answers = itertools.chain(last, itertools.repeat(last[-1]))

    async def step(exchange: Exchange) -> None:
        done = 0
        for message in exchange.request.messages:
            done = 0 if message["role"] == "user" else done + ("tool_calls" in message)
        for next_step in turns[done] if done < len(turns) else next(answers):
            await next_step(exchange)

    return step


def _scripts(number: int, client: Client) -> list[Script]:
    """The upstream's answer to each request; every word is unique in its round."""
    answers = [
        [f"{number}.{attempt}.{word} " for word in range(client.words)]
        for attempt in range(_ATTEMPTS)
    ]
    scripts: list[Script] = [reply(*words, gap=client.gap) for words in answers]
    sent_before_fault = text(*answers[0][: client.upstream_fault_at], gap=client.gap)
    match client.upstream_fault:
        case "reset":
            scripts[0] = [sent_before_fault, reset()]
        case "drop":
            scripts[0] = [sent_before_fault, drop()]
        case "hang":
            scripts[0] = [sent_before_fault, hang()]
        case "refused first":
            scripts.insert(0, [status(503, retry=True)])
        case "none":
            pass
    return scripts
