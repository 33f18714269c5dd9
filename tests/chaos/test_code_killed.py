"""Workers and sandboxes are killed while code runs: no cell runs twice, none is lost (I6)."""

import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.code.campaign import CodePlan, run_code
from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import Script, UpstreamRequest, call, done, finish, text, usage
from tests.support.sandboxes import SandboxProcess, running_sandbox, sandbox_settings
from tests.support.stack import SHORT_LEASES, Stack

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]
LONG = """
import time
time.sleep({seconds})
open("/mnt/data/result.txt", "w").write("kept")
print("done once")
"""


@dataclass
class CodeStack:
    """A deployment that runs code, and its sandboxes."""

    running: Stack
    sandboxes: list[SandboxProcess]

    def runs(self) -> Counter[str]:
        """id of a cell -> how often it has begun, on all sandboxes."""
        return Counter(each for sandbox in self.sandboxes for each in sandbox.runs())

    def model(self, *cells: str) -> str:
        """A model that runs these cells, one a turn, and then answers."""
        turns = [
            [
                call(0, f"call_{number}", "code_interpreter", json.dumps({"code": code})),
                *(finish("tool_calls"), usage(), done()),
            ]
            for number, code in enumerate(cells)
        ]
        name = self.running.fake.script()

        def decide(request: UpstreamRequest) -> Script:
            answered = sum(message["role"] == "tool" for message in request.messages)
            if answered < len(turns):
                return turns[answered]
            return [text("The end."), finish(), usage(), done()]

        self.running.fake.decide(name, decide)
        return name


@asynccontextmanager
async def code_stack(
    private_stack: PrivateStack, folder: Path, *, workers: int, sandboxes: int = 1
) -> AsyncIterator[CodeStack]:
    token = secrets.token_urlsafe(16)
    async with AsyncExitStack() as opened:
        started = [
            await opened.enter_async_context(
                running_sandbox(folder / f"s{number}", token, "--sessions", "40")
            )
            for number in range(sandboxes)
        ]
        settings = {**SHORT_LEASES, **sandbox_settings(token, *started)}
        running = await opened.enter_async_context(
            private_stack(workers=workers, settings=settings, quarantine=sandboxes > 1)
        )
        yield CodeStack(running, started)


def logs_of(response: JSON, number: int = 0) -> str:
    """What the code of the call with this number printed."""
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return "".join(each["logs"] for each in calls[number]["outputs"])


@pytest.mark.parametrize("way", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
async def test_a_worker_ends_in_a_long_cell_and_its_result_is_there(
    private_stack: PrivateStack, tmp_path: Path, way: str
) -> None:
    async with code_stack(private_stack, tmp_path, workers=1) as code:
        running, api = code.running, code.running.api()
        model = code.model(LONG.format(seconds=2))
        created = await api.create_background(model, tools=[AUTO], include=OUTPUTS)
        await until(code.runs)
        victim = running.workers[0]
        if way == "killed":
            running.kill(victim)
        else:
            await running.stop(victim)
        await running.start_worker()
        response = await api.wait_for_end(created)
        assert response["status"] == "completed"
        assert logs_of(response) == "done once"
        assert list(code.runs().values()) == [1]
        assert len(running.fake.requests_for(model)) == 2
        assert_one_stream(await api.replay(created))


@pytest.mark.long
async def test_a_sandbox_is_killed_in_a_cell_and_the_response_goes_on(
    private_stack: PrivateStack, tmp_path: Path
) -> None:
    keep = "x = 1\nopen('/mnt/data/kept.txt', 'w').write('still there')"
    after = "print(open('/mnt/data/kept.txt').read()); print('x' in globals())"
    async with code_stack(private_stack, tmp_path, workers=1) as code:
        api, [sandbox] = code.running.api(), code.sandboxes
        model = code.model(keep, LONG.format(seconds=60), after)
        created = await api.create_background(model, tools=[AUTO], include=OUTPUTS)
        await until(lambda: len(code.runs()) == 2)
        sandbox.kill()
        await sandbox.start_and_wait()
        response = await api.wait_for_end(created, within=60)
        calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
        assert [item["status"] for item in calls] == ["completed", "failed", "completed"]
        assert logs_of(response, 2) == "still there\nFalse"
        outputs = [
            message["content"]
            for message in code.running.fake.requests_for(model)[-1].messages
            if message["role"] == "tool"
        ]
        assert "not run again" in outputs[1]
        assert "session was lost" in outputs[2]
        assert max(code.runs().values()) == 1
        assert response["status"] == "completed"


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_no_cell_runs_twice_and_none_is_lost_whatever_is_killed(
    embedded_postgres: None,
) -> None:
    result = await run_code(CodePlan(responses=50, seed=38))
    assert result.violations == []
    assert result.faults.total() >= 3
