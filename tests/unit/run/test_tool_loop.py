"""The tool loop in memory: which step is stored before which, and what a later attempt repeats."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from models.config.groups import LimitSettings
from models.db.queries.claim import CheckpointedItem
from models.errors import Cancelled, LimitReached
from models.wire.events import Item
from tests.support.api import JSON
from tests.support.memory_process import Answer, MemoryProcess, MemoryUpstream, tool_context
from worker.run.tool_loop import run_tool_loop
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenCallFactory, OpenMcpCall
from worker.translation.upstream_events import CallDelta, ChatChunk

TOOL = {"type": "mcp", "server_label": "s"}
HELLO: Answer = [ChatChunk(content="Hello"), ChatChunk(finish_reason="stop")]


def _calls(*numbers: int) -> list[ChatChunk]:
    """A turn in which the model calls the function so many times."""
    deltas = tuple(
        CallDelta(index=at, id=f"call_{number}", name="f", arguments=f'{{"n": {number}}}')
        for at, number in enumerate(numbers)
    )
    return [ChatChunk(calls=deltas), ChatChunk(finish_reason="tool_calls")]


class _Tool:
    """A server with one function `f`, which notes its calls among the steps of the run."""

    process: MemoryProcess
    time: float | None = None
    in_order = False
    is_safe = False
    error: Exception | None = None

    def __init__(self, _tool: Mapping[str, Any], _context: ToolContext) -> None:
        """One of a request."""

    def pending(self, _history: Sequence[Item]) -> list[OpenCallFactory]:
        return []

    def functions(self) -> list[ServerFunction]:
        def open_call(index: int, new_id: Any) -> OpenMcpCall:
            return OpenMcpCall(index, new_id("mcp"), server_label="s", name="f")

        return [ServerFunction({**TOOL, "name": "f"}, "f", open_call)]

    def owns(self, item: Item) -> bool:
        return bool(item["type"] == "mcp_call")

    def is_repeatable(self, _item: Item) -> bool:
        return self.is_safe

    async def run(self, item: Item) -> ToolResult:
        self.process.ownership.steps.append(f"call {item['arguments']}")
        if self.error is not None:
            raise self.error
        return ToolResult({"output": "done"})

    async def close(self) -> None:
        """It has no connections."""


class _Loop:
    """A run of the tool loop, and what it has stored."""

    def __init__(
        self,
        *answers: Answer,
        safe: bool = False,
        in_order: bool = False,
        error: Exception | None = None,
    ) -> None:
        self.process = MemoryProcess(MemoryUpstream(answers))
        rules = {"is_safe": safe, "in_order": in_order}
        members = {"process": self.process, **rules, "error": error}
        self._tool = type("Tool", (_Tool,), members)

    async def run(self, **context: Any) -> Any:
        made = tool_context(self.process, [TOOL], {"mcp": self._tool}, **context)
        return await run_tool_loop(made)

    @property
    def steps(self) -> list[str]:
        return self.process.ownership.steps

    def output_of(self, position: int) -> Item:
        item: Item = self.process.ownership.outputs[position][0]
        return item


def _stored(*, started: bool, finished: bool = False) -> CheckpointedItem:
    """A call that an earlier attempt has stored."""
    item: JSON = {"id": "mcp_1", "type": "mcp_call", "status": "in_progress", "name": "f"}
    item |= {"server_label": "s", "arguments": '{"n": 1}'}
    return CheckpointedItem(item, 0, 1, 1 if started else None, finished, None)


async def test_a_turn_is_stored_before_its_call_and_the_call_before_it_runs() -> None:
    loop = _Loop(_calls(1), HELLO)
    outcome = await loop.run()
    assert outcome.status == "completed"
    assert loop.steps == ["checkpoint 1", "start 0", 'call {"n": 1}', "finish 0"]
    assert loop.output_of(0)["output"] == "done"
    assert loop.process.upstream.bodies[1]["messages"][-1]["content"] == "done"


async def test_input_that_has_arrived_ends_the_response_after_a_turn_and_its_calls() -> None:
    loop = _Loop(_calls(1), HELLO)
    loop.process.ownership.steers = 1
    outcome = await loop.run()
    assert (outcome.status, outcome.incomplete_reason) == ("incomplete", "steered")
    assert loop.steps == ["checkpoint 1", "start 0", 'call {"n": 1}', "finish 0"]
    assert len(loop.process.upstream.bodies) == 1


@pytest.mark.parametrize("in_order", [True, False], ids=["by their tool", "by the request"])
async def test_calls_of_a_turn_one_after_the_other(in_order: bool) -> None:
    loop = _Loop(_calls(1, 2), HELLO, in_order=in_order)
    await loop.run(parameters={"parallel_tool_calls": in_order})
    ran = ['call {"n": 1}', 'call {"n": 2}']
    assert loop.steps == [
        "checkpoint 2",
        "start 0",
        ran[0],
        "finish 0",
        "start 1",
        ran[1],
        "finish 1",
    ]


async def test_a_call_that_fails_is_a_result_for_the_model() -> None:
    loop = _Loop(_calls(1), HELLO, error=ToolCallError("out of paper"))
    assert (await loop.run()).status == "completed"
    assert loop.output_of(0)["status"] == "failed"
    assert "out of paper" in loop.process.upstream.bodies[1]["messages"][-1]["content"]


async def test_a_call_whose_start_is_refused_does_not_run() -> None:
    loop = _Loop(_calls(1))
    loop.process.ownership.refuse = {"start": [Cancelled()]}
    with pytest.raises(Cancelled):
        await loop.run()
    assert loop.steps == ["checkpoint 1"]


REPEATS = [
    (False, False, True),  # it was not started
    (True, True, True),  # it was, and may run twice
    (True, False, False),  # it was, and may not
]


@pytest.mark.parametrize(("started", "safe", "runs"), REPEATS)
async def test_a_call_of_an_earlier_attempt(started: bool, safe: bool, runs: bool) -> None:
    loop = _Loop(HELLO, safe=safe)
    await loop.run(rows=[_stored(started=started)], attempt=2, turns=1, next_output_index=1)
    assert ('call {"n": 1}' in loop.steps) == runs
    assert loop.output_of(0)["status"] == ("completed" if runs else "failed")
    assert len(loop.process.upstream.bodies) == 1


async def test_no_step_begins_while_the_process_stops() -> None:
    loop = _Loop(_calls(1))
    steps = loop.steps
    assert await loop.run(is_draining=lambda: "checkpoint 1" in steps) is None
    assert loop.steps == ["checkpoint 1"]


async def test_no_more_calls_than_the_request_allows() -> None:
    loop = _Loop(_calls(1), HELLO)
    await loop.run(parameters={"max_tool_calls": 1})
    assert loop.process.upstream.bodies[1]["tool_choice"] == "none"


async def test_turns_are_limited() -> None:
    loop = _Loop(_calls(1), _calls(2))
    loop.process.limits = LimitSettings(turns=2)
    outcome = await loop.run()
    assert (outcome.status, outcome.incomplete_reason) == ("incomplete", "max_messages")


async def test_the_output_of_all_turns_is_limited() -> None:
    turn = [ChatChunk(content="x" * 2000), *_calls(1)]
    loop = _Loop(turn)
    loop.process.limits = LimitSettings(response_output=1000)
    with pytest.raises(LimitReached, match="in all turns"):
        await loop.run()
