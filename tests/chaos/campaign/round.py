"""One round: the clients and faults of a plan, until everything is over; then the auditor."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.audit.auditor import Report, audit
from tests.chaos.audit.case import Violation
from tests.chaos.audit.record import Record, Story
from tests.chaos.audit.sources import tool_log
from tests.chaos.campaign.deployment import House
from tests.chaos.campaign.plan import Client, Plan, Strike
from tests.support.chaos.recording_client import TERMINAL, Witness
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
from tests.support.mcp_servers import COUNTING, McpServers
from tests.support.tool_turns import counting, tool_turn

SAFE = frozenset(COUNTING) - {"count_unsafe"}

_TRIES = 4
"""How often a client that is answered 503 sends its create, a second apart."""
_ATTEMPTS = 6
"""Upstream requests of one response that have words of their own; further ones repeat the last."""


@dataclass(slots=True)
class Outcome:
    """What came of a round."""

    plan: Plan
    record: Record
    report: Report
    deeds: Counter[str] = field(default_factory=Counter)
    injected: int = 0
    """statements spoilt"""
    seconds: float = 0.0


async def run_round(
    house: House, plan: Plan, *, patience: float, mcp: McpServers | None = None
) -> Outcome:
    """Run it in this house and audit it. `patience`: seconds the last response gets to end after the load; `mcp`: where tools are."""
    begun, injected, tracebacks = time.monotonic(), house.injected, len(house.stack.tracebacks())
    deeds: Counter[str] = Counter()
    async with Witness(house.stack, plan.seed, patience=patience) as witness:
        house.serve(witness)
        crowd = _Crowd(witness, plan.seed, mcp)
        try:
            async with asyncio.TaskGroup() as work:
                for number, client in enumerate(plan.clients):
                    work.create_task(crowd.act(number, client))
                for strike in plan.strikes:
                    work.create_task(_strike(house, strike, deeds))
            record, _ = await asyncio.gather(witness.settle(), house.whole())
        finally:
            house.serve(None)
    if mcp is not None:
        record.tools = tool_log(mcp.counting, SAFE)
        house.faults += [f"the MCP server broke: {fault!r}" for fault in mcp.faults]
        mcp.faults.clear()
    report = audit(record)
    report.violations += [Violation("house", "-", fault) for fault in house.faults]
    report.violations += [
        Violation("house", "-", "a traceback", found)
        for found in house.stack.tracebacks()[tracebacks:]
    ]
    house.faults.clear()
    return Outcome(plan, record, report, deeds, house.injected - injected, time.monotonic() - begun)


async def _strike(house: House, strike: Strike, deeds: Counter[str]) -> None:
    await asyncio.sleep(strike.at)
    if await house.strike(strike):
        deeds[strike.deed] += 1


class _Crowd:
    """The clients of a round."""

    def __init__(self, witness: Witness, seed: int, mcp: McpServers | None) -> None:
        self._witness = witness
        self._mcp = mcp
        self._seed = seed
        self._parents: list[Story] = []
        """Background responses that nobody is going to delete."""

    async def act(self, number: int, client: Client) -> None:
        """All that the clients of one response do."""
        await asyncio.sleep(client.at)
        previous = await self._parent() if client.kind == "chained" else None
        background = not client.kind.startswith("foreground")
        streams = client.kind in ("streamed", "foreground stream")
        for attempt in range(_TRIES):
            marker = f"r{self._seed}-{number}-{attempt}"
            story = await self._witness.create(
                *self._scripts(number, client, marker), background=background, stream=streams, previous=previous, leave=client.leaves,
                marker=marker, turns=1 + len(client.tools), **self._tools(client),
            )  # fmt: skip
            if story.create.status != 503:
                break
            await asyncio.sleep(1)
        if story.id is None or not background:
            return
        if client.delete is None:
            self._parents.append(story)
        if not streams:
            self._witness.poll_on(story)
        for leaves in client.readers:
            self._witness.read_on(story, leaves)
        if client.slow:
            self._witness.read_on(story, pause=client.slow)
        await asyncio.gather(self._cancel(story, client.cancel), self._delete(story, client.delete))

    def _scripts(self, number: int, client: Client, marker: str) -> list[Script]:
        """What the upstream answers; with tools, by how far the tool loop has come."""
        if self._mcp is None or not client.tools:
            return _scripts(number, client)
        turns = []
        for turn, tools in enumerate(client.tools):
            keys = [f"{marker}/{turn}.{place}" for place in range(len(tools))]
            for key in keys if client.lingers else []:
                asyncio.get_running_loop().call_later(
                    client.lingers, self._mcp.counting.hold(key).set
                )
            turns.append(tool_turn(*zip(tools, keys, strict=True)))
        return [[_by_turn(turns, _scripts(number, client))]]

    def _tools(self, client: Client) -> dict[str, Any]:
        return {"tools": [counting(self._mcp)]} if self._mcp is not None and client.tools else {}

    async def _parent(self) -> Story | None:
        """An earlier response, once its end was seen; None when there is none."""
        for story in self._parents:
            for look in [await self._witness.look(story)]:
                if look.status == 200 and look.body["status"] in TERMINAL:
                    return story
        return None

    async def _cancel(self, story: Story, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._witness.cancel(story)

    async def _delete(self, story: Story, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._witness.delete(story)


def _by_turn(turns: list[list[Step]], last: list[Script]) -> Step:
    """Answers with the turn that the conversation has come to: the n-th after n turns with calls since the user spoke."""
    answers = itertools.chain(last, itertools.repeat(last[-1]))

    async def step(exchange: Exchange) -> None:
        told = 0
        for message in exchange.request.messages:
            told = 0 if message["role"] == "user" else told + ("tool_calls" in message)
        for one in turns[told] if told < len(turns) else next(answers):
            await one(exchange)

    return step


def _scripts(number: int, client: Client) -> list[Script]:
    """What the upstream answers to each request; every word is unique in its round."""
    answers = [
        [f"{number}.{attempt}.{word} " for word in range(client.words)]
        for attempt in range(_ATTEMPTS)
    ]
    scripts: list[Script] = [reply(*words, gap=client.gap) for words in answers]
    heard = text(*answers[0][: client.accident_at], gap=client.gap)
    match client.accident:
        case "reset":
            scripts[0] = [heard, reset()]
        case "drop":
            scripts[0] = [heard, drop()]
        case "hang":
            scripts[0] = [heard, hang()]
        case "refused first":
            scripts.insert(0, [status(503, retry=True)])
        case "none":
            pass
    return scripts
