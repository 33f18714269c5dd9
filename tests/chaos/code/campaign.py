"""Responses run code while workers, web processes, sandboxes and PostgreSQL are killed."""

import asyncio
import json
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import openai
from openai.types.responses import Response, ResponseCodeInterpreterToolCall
from openai.types.responses.tool_param import CodeInterpreter

from tests.chaos.test_restarts import own_servers
from tests.support.api import until
from tests.support.chaos.random_kills import RandomKills
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    call,
    done,
    finish,
    text,
    usage,
)
from tests.support.sandboxes import SandboxProcess, running_sandbox, sandbox_settings
from tests.support.stack import SHORT_LEASES, Stack, SuiteSettings

_TOOL: CodeInterpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
_OUTPUTS: Literal["code_interpreter_call.outputs"] = "code_interpreter_call.outputs"
_OPEN = ("queued", "in_progress")
_WRITES = "with open('/mnt/data/{name}.txt', 'a') as file: file.write('once')\nprint('written')"
_WAITS = "import time\ntime.sleep(0.4)\nprint('cell {number}')"
_READS = "import glob\nprint(*[open(name).read() for name in sorted(glob.glob('/mnt/data/*'))])"
_CELLS = 4
_SESSIONS = "20"
"""Of each of two sandboxes."""
_LONGEST = 180.0
"""Seconds that one response may take."""


@dataclass(frozen=True, slots=True)
class CodePlan:
    """What is run."""

    responses: int = 250
    seed: int = 1
    pause: float = 3.0
    """seconds between two kills, on average; 0: nothing is killed"""
    together: int = 16
    """responses that run at a time"""


@dataclass(slots=True)
class CodeResult:
    """What happened."""

    plan: CodePlan
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    """status -> calls"""


async def run_code(plan: CodePlan) -> CodeResult:
    """Runs the plan in a deployment of its own: two web processes, two workers, two sandboxes."""
    result = CodeResult(plan)
    token = secrets.token_urlsafe(16)
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="backburner-code-")))
        sandboxes = [
            await opened.enter_async_context(
                running_sandbox(folder / name, token, "--sessions", _SESSIONS)
            )
            for name in ("s1", "s2")
        ]
        fake = await opened.enter_async_context(FakeUpstream())
        running, postgres = await opened.enter_async_context(
            own_servers(
                folder,
                SuiteSettings(),
                fake,
                webs=2,
                workers=2,
                quarantine=True,
                settings={**SHORT_LEASES, **sandbox_settings(token, *sandboxes)},
                allowed_tracebacks=SERVER_TRACEBACKS,
            )
        )
        numbers = random.Random(plan.seed)
        kills = RandomKills(running, postgres, numbers)
        await _Campaign(result, running, sandboxes, kills, numbers).run()
    return result


class _Campaign:
    def __init__(
        self,
        result: CodeResult,
        running: Stack,
        sandboxes: list[SandboxProcess],
        kills: RandomKills,
        numbers: random.Random,
    ) -> None:
        self._plan = result.plan
        self._result = result
        self._running = running
        self._sandboxes = sandboxes
        self._kills = kills
        self._random = numbers
        self._clients = [
            running.openai(web).with_options(max_retries=20, timeout=10)
            for web in range(len(running.webs))
        ]
        self._answered: set[str] = set()
        """The ids of all calls that a response has."""

    async def run(self) -> None:
        """Fills the result."""
        self._running.fake.decide("coder", _next_turn)
        began = time.monotonic()
        breaking = asyncio.create_task(self._break()) if self._plan.pause else None
        room = asyncio.Semaphore(self._plan.together)

        async def one(number: int) -> None:
            async with room:
                await self._respond(number)

        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.responses):
                group.create_task(one(number))
        if breaking is not None:
            breaking.cancel()
            await asyncio.wait([breaking])
            if not breaking.cancelled():
                await breaking
        self._result.seconds = time.monotonic() - began
        self._result.faults = self._kills.faults
        runs = Counter(each for sandbox in self._sandboxes for each in sandbox.runs())
        self._violated(
            f"a cell ran {count} times: {cell}" for cell, count in runs.items() if count > 1
        )
        self._violated(
            f"the result of a cell is lost: {cell}" for cell in runs.keys() - self._answered
        )

    async def _break(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.pause))
            chance = self._random.random()
            if chance < 0.4:
                sandbox = self._random.choice(self._sandboxes)
                self._kills.faults["sandbox"] += 1
                sandbox.kill()
                await sandbox.start_and_wait()
            elif chance < 0.95:
                await self._kills.kill()
            else:
                await self._kills.restart_postgres(crash=True)

    async def _respond(self, number: int) -> None:
        """One response; its container is deleted afterwards, so that there is room for the next."""
        client = self._clients[number % len(self._clients)]
        created = await client.responses.create(
            model="coder", input=f"f{number}", background=True, tools=[_TOOL], include=[_OUTPUTS]
        )

        async def ended() -> Response | None:
            response = await client.responses.retrieve(created.id)
            return None if response.status in _OPEN else response

        response = await until(ended, _LONGEST, every=0.2)
        assert response is not None
        calls = [
            item for item in response.output if isinstance(item, ResponseCodeInterpreterToolCall)
        ]
        self._answered.update(item.id for item in calls)
        self._result.calls.update(item.status for item in calls)
        self._violated(f"{created.id}: {words}" for words in _mistakes(response, calls))
        for container in {item.container_id for item in calls}:
            with suppress(openai.NotFoundError):  # a repeated request whose first answer was lost
                await client.containers.delete(container)

    def _violated(self, words: Iterator[str]) -> None:
        self._result.violations += words


def _next_turn(request: UpstreamRequest) -> Script:
    answered = sum(message["role"] == "tool" for message in request.messages)
    if answered == _CELLS:
        return [text("The end."), finish(), usage(), done()]
    template = (_WRITES, _WAITS, _WAITS, _READS)[answered]
    code = template.format(name=request.messages[-1 - 2 * answered]["content"], number=answered)
    arguments = json.dumps({"code": code})
    return [
        call(0, f"call_{answered}", "code_interpreter", arguments),
        *(finish("tool_calls"), usage(), done()),
    ]


def _mistakes(response: Response, calls: list[ResponseCodeInterpreterToolCall]) -> Iterator[str]:
    """What is wrong with a response that has ended."""
    if response.status != "completed":
        yield f"it is {response.status}: {response.error or response.incomplete_details}"
        return
    if len(calls) != _CELLS:
        yield f"it has {len(calls)} calls"
        return
    expected = ["written", *(f"cell {number}" for number in range(1, _CELLS - 1)), "once"]
    for number, item in enumerate(calls):
        printed = "".join(each.logs for each in item.outputs or () if each.type == "logs")
        if (
            item.status == "completed"
            and printed != expected[number]
            and calls[0].status == "completed"
        ):
            yield f"cell {number} printed {printed!r}"
        elif item.status not in ("completed", "failed"):
            yield f"cell {number} is {item.status}"
