"""A run from its claim to its ending or release, in memory: what it stores, in which order."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from models.errors import Cancelled, LeaseLost, UpstreamFailed
from models.ownership.takeover import EndReason
from tests.support.memory_process import Answer, MemoryProcess, MemoryUpstream, claim
from worker.run.end_state import StopReason
from worker.run.runner import Run
from worker.translation.upstream_events import ChatChunk

HELLO: Answer = [ChatChunk(content="Hel"), ChatChunk(content="lo"), ChatChunk(finish_reason="stop")]
CUT: Answer = [ChatChunk(content="Hel"), ChatChunk(finish_reason="length")]
REFUSED = UpstreamFailed("No.", reason="refused", status=400)
BUSY = UpstreamFailed("Later.", reason="busy", status=503, is_temporary=True)
BROKEN = RuntimeError("a defect")


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Drops what the runs log: to print a traceback takes seconds."""
    with structlog.testing.capture_logs():
        yield


async def _run(
    *answers: Answer, refuse: dict[str, list[Exception]] | None = None, **row: Any
) -> tuple[MemoryProcess, Run]:
    process = MemoryProcess(MemoryUpstream(answers))
    process.ownership.refuse = refuse or {}
    run = Run(claim(**row), process.resources)
    await run.run()
    return process, run


ENDINGS: list[tuple[Answer, list[str]]] = [
    (HELLO, ["end completed"]),
    (CUT, ["end incomplete"]),
    (REFUSED, ["end failed", "failures"]),
    (BUSY, ["release deferred"]),
    (BROKEN, ["end failed"]),
]


@pytest.mark.parametrize(("answer", "steps"), ENDINGS)
async def test_a_run_ends_or_is_released(answer: Answer, steps: list[str]) -> None:
    process, run = await _run(answer)
    assert process.ownership.steps == steps
    assert run.outcome == ("ended" if process.ownership.ending else "deferred")
    assert process.exits == []


async def test_a_foreground_response_does_not_wait_for_its_upstream() -> None:
    process, _ = await _run(BUSY, background=False)
    assert process.ownership.steps == ["end failed", "failures"]


async def test_every_event_is_stored_once_and_published_after_that() -> None:
    process, _ = await _run(HELLO)
    published = process.journal.published
    assert [each["sequence_number"] for each in published] == list(range(2, 2 + len(published)))
    assert "".join(each["delta"] for each in published if "output_text.delta" in each["type"]) == (
        "Hello"
    )
    assert published[-1]["type"] == "response.completed"
    assert len(process.ownership.frames) == len(published)


REASONS: list[tuple[EndReason, str]] = [
    (EndReason.CANCELLED, "end cancelled"),
    (EndReason.DEADLINE, "end failed"),
    (EndReason.TOO_MANY_CRASHES, "end failed"),
]


@pytest.mark.parametrize(("reason", "step"), REASONS)
async def test_a_response_that_is_claimed_to_be_ended_calls_no_upstream(
    reason: EndReason, step: str
) -> None:
    process, _ = await _run(end_reason=reason)
    assert process.ownership.steps == [step]
    assert process.upstream.bodies == []


async def test_a_deadline_ends_a_response() -> None:
    process, _ = await _run(HELLO, seconds_left=0.0)
    assert process.ownership.ending is not None
    assert process.ownership.ending.reason == "deadline"


STOPS: list[tuple[StopReason, list[str], int]] = [
    (StopReason.CANCEL, ["end cancelled"], 0),
    (StopReason.HAND_OVER, ["release handed_over"], 1),
    (StopReason.REQUEUE, ["release requeued"], 1),
    (StopReason.MEMORY, ["release error"], 1),
    (StopReason.LOST, [], 0),
]


@pytest.mark.parametrize(("reason", "steps", "enqueued"), STOPS)
async def test_a_run_that_is_stopped_in_its_stream(
    reason: StopReason, steps: list[str], enqueued: int
) -> None:
    process = MemoryProcess(MemoryUpstream([HELLO]))
    run = Run(claim(), process.resources)
    process.upstream.on_read = lambda: run.stop(reason)
    await run.run()
    assert process.ownership.steps == steps
    assert len(process.enqueued) == enqueued


REFUSALS: list[tuple[dict[str, list[Exception]], list[str]]] = [
    ({"end": [Cancelled()]}, ["end cancelled"]),
    ({"end": [BROKEN]}, ["end failed"]),
    ({"end": [BROKEN, BROKEN]}, ["end failed"]),
    ({"end": [BROKEN, BROKEN, BROKEN]}, ["release error"]),
    ({"end": [LeaseLost("gone")]}, ["release handed_over"]),
    ({"end": [LeaseLost("gone")], "release": [LeaseLost("gone")]}, []),
]


@pytest.mark.parametrize(("refuse", "steps"), REFUSALS)
async def test_an_ending_that_is_refused(
    refuse: dict[str, list[Exception]], steps: list[str]
) -> None:
    process, _ = await _run(HELLO, refuse=refuse)
    assert process.ownership.steps == steps


async def test_a_run_that_can_neither_end_nor_release_ends_its_process() -> None:
    process, run = await _run(HELLO, refuse={"end": [BROKEN] * 3, "release": [BROKEN]})
    assert process.exits == ["exit"]
    assert run.end_state is None


async def test_a_temporary_failure_is_tried_later_each_time() -> None:
    delays = []
    for attempt in (1, 5, 20):
        process, _ = await _run(BUSY, attempt=attempt)
        assert process.ownership.delay is not None
        delays.append(process.ownership.delay.total_seconds())
    assert delays == sorted(delays)
    assert delays[-1] <= 30 * 1.25
