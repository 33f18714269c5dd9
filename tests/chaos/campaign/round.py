"""One round: the clients and faults of a plan, until everything is over; then the auditor."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.audit.auditor import Report, audit
from tests.chaos.audit.case import Violation
from tests.chaos.audit.record import ResponseTrace, RunRecord
from tests.chaos.audit.sources import tool_log
from tests.chaos.campaign.deployment import Deployment
from tests.chaos.campaign.plan import Client, Plan, PlannedFault
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
from tests.support.mcp_servers import COUNTING_TOOLS, McpServers
from tests.support.tool_turns import counting_server, tool_turn

SAFE = frozenset(COUNTING_TOOLS) - {"count_unsafe"}

_TRIES = 4
"""How often a client that is answered 503 sends its create, a second apart."""
_ATTEMPTS = 6
"""Upstream requests of one response that have words of their own; further ones repeat the last."""


@dataclass(slots=True)
class RoundResult:
    """What came of a round."""

    plan: Plan
    record: RunRecord
    report: Report
    faults: Counter[str] = field(default_factory=Counter)
    injected: int = 0
    """statements spoilt"""
    seconds: float = 0.0


async def run_round(
    deployment: Deployment, plan: Plan, *, end_timeout: float, mcp: McpServers | None = None
) -> RoundResult:
    """Run it in this house and audit it. `patience`: seconds the last response gets to end after the load; `mcp`: where tools are."""
    begun, injected, tracebacks = (
        time.monotonic(),
        deployment.injected,
        len(deployment.stack.tracebacks()),
    )
    deeds: Counter[str] = Counter()
    async with RecordedClients(deployment.stack, plan.seed, end_timeout=end_timeout) as witness:
        deployment.record_to(witness)
        crowd = _PlannedClients(witness, plan.seed, mcp)
        try:
            async with asyncio.TaskGroup() as work:
                for number, client in enumerate(plan.clients):
                    work.create_task(crowd.run(number, client))
                for strike in plan.faults:
                    work.create_task(_apply_fault(deployment, strike, deeds))
            record, _ = await asyncio.gather(witness.finish(), deployment.wait_until_healthy())
        finally:
            deployment.record_to(None)
    if mcp is not None:
        record.tools = tool_log(mcp.tool_calls, SAFE)
        deployment.faults += [f"the MCP server broke: {fault!r}" for fault in mcp.faults]
        mcp.faults.clear()
    report = audit(record)
    report.violations += [Violation("house", "-", fault) for fault in deployment.faults]
    report.violations += [
        Violation("house", "-", "a traceback", found)
        for found in deployment.stack.tracebacks()[tracebacks:]
    ]
    deployment.faults.clear()
    return RoundResult(
        plan, record, report, deeds, deployment.injected - injected, time.monotonic() - begun
    )


async def _apply_fault(
    deployment: Deployment, planned: PlannedFault, applied: Counter[str]
) -> None:
    await asyncio.sleep(planned.at)
    if await deployment.apply_fault(planned):
        applied[planned.action] += 1


class _PlannedClients:
    """The clients of a round."""

    def __init__(self, clients: RecordedClients, seed: int, mcp: McpServers | None) -> None:
        self._clients = clients
        self._mcp = mcp
        self._seed = seed
        self._parents: list[ResponseTrace] = []
        """Background responses that nobody is going to delete."""

    async def run(self, number: int, client: Client) -> None:
        """All that the clients of one response do."""
        await asyncio.sleep(client.at)
        previous = await self._parent() if client.kind == "chained" else None
        background = not client.kind.startswith("foreground")
        streams = client.kind in ("streamed", "foreground stream")
        for attempt in range(_TRIES):
            marker = f"r{self._seed}-{number}-{attempt}"
            story = await self._clients.create(
                *self._scripts(number, client, marker), background=background, stream=streams, previous=previous, disconnect_after=client.disconnects,
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
            self._clients.start_poller(story)
        for leaves in client.readers:
            self._clients.start_reader(story, leaves)
        if client.read_pause:
            self._clients.start_reader(story, pause=client.read_pause)
        await asyncio.gather(self._cancel(story, client.cancel), self._delete(story, client.delete))

    def _scripts(self, number: int, client: Client, marker: str) -> list[Script]:
        """What the upstream answers; with tools, by how far the tool loop has come."""
        if self._mcp is None or not client.tools:
            return _scripts(number, client)
        turns = []
        for turn, tools in enumerate(client.tools):
            keys = [f"{marker}/{turn}.{place}" for place in range(len(tools))]
            for key in keys if client.tool_delay else []:
                asyncio.get_running_loop().call_later(
                    client.tool_delay, self._mcp.tool_calls.hold(key).set
                )
            turns.append(tool_turn(*zip(tools, keys, strict=True)))
        return [[_by_turn(turns, _scripts(number, client))]]

    def _tools(self, client: Client) -> dict[str, Any]:
        return (
            {"tools": [counting_server(self._mcp)]}
            if self._mcp is not None and client.tools
            else {}
        )

    async def _parent(self) -> ResponseTrace | None:
        """An earlier response, once its end was seen; None when there is none."""
        for story in self._parents:
            for look in [await self._clients.get(story)]:
                if look.status == 200 and look.body["status"] in TERMINAL:
                    return story
        return None

    async def _cancel(self, story: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.cancel(story)

    async def _delete(self, story: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.delete(story)


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
    heard = text(*answers[0][: client.upstream_fault_at], gap=client.gap)
    match client.upstream_fault:
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
