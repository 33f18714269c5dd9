"""The limiter of an upstream: how many calls run, which go first, and when none do."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count

import pytest

from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamBusy, UpstreamFailed, UpstreamUnreached
from worker.upstream.circuit import Circuit
from worker.upstream.gate import ConcurrencyLimiter, Permit

NAMES: Iterator[int] = count()
FAILED = UpstreamFailed("x", reason="upstream_500")
UNSENT = UpstreamUnreached("x", reason="upstream_unreachable")


def gate(limit: int | None = None, *, wait: float = 60, failures: int = 2) -> ConcurrencyLimiter:
    value = {
        "name": f"gate-{next(NAMES)}",
        "wait": timedelta(seconds=wait),
        "circuit_failures": failures,
        "circuit_pause": timedelta(hours=1),
    }
    return ConcurrencyLimiter(UpstreamSettings.model_validate(value), limit)


@asynccontextmanager
async def inside(
    one: ConcurrencyLimiter, model: str = "m", *, interactive: bool = False
) -> AsyncIterator[Permit]:
    async with one.acquire(model, interactive=interactive) as visit:
        yield visit


async def enter(
    one: ConcurrencyLimiter, order: list[str], name: str, *, interactive: bool = False
) -> None:
    """Acquires a permit, records it, and releases it at once."""
    async with one.acquire("m", interactive=interactive):
        order.append(name)


async def failing(
    one: ConcurrencyLimiter, error: Exception, model: str = "m", times: int = 1
) -> None:
    for _ in range(times):
        with pytest.raises(type(error)):
            async with one.acquire(model, interactive=False):
                raise error


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


# --- a circuit ---


def test_a_circuit_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    circuit = Circuit(3, timedelta(seconds=10))
    for _ in range(2):
        circuit.record_call()
        circuit.record_failure(100.0, as_probe=False)
        circuit.record_end(as_probe=False)
    circuit.record_success()
    for _ in range(2):
        circuit.record_failure(100.0, as_probe=False)
    assert (circuit.is_open, circuit.wait(100.0)) == (False, 0.0), "an answer starts the count anew"
    circuit.record_failure(100.0, as_probe=False)
    assert (circuit.is_open, circuit.wait(104.0)) == (True, 6.0)
    circuit.record_failure(109.0, as_probe=False)
    assert circuit.wait(109.0) == 1.0, "who began before it opened does not prolong it"
    assert circuit.wait(110.0) == 0.0
    circuit.record_call()
    assert circuit.wait(110.0) > 0, "one probe at a time"
    circuit.record_end(as_probe=True)
    assert circuit.wait(110.0) == 0.0, "a probe without a result may be made again"


def test_its_pause_doubles_with_each_probe_that_fails_and_only_so_often() -> None:
    circuit = Circuit(1, timedelta(seconds=10))
    circuit.record_failure(0.0, as_probe=False)
    pauses = []
    for _ in range(4):
        circuit.record_call()
        circuit.record_failure(0.0, as_probe=True)
        circuit.record_end(as_probe=True)
        pauses.append(circuit.wait(0.0))
    assert pauses == [20.0, 40.0, 40.0, 40.0]
    circuit.record_success()
    assert (circuit.is_open, circuit.is_idle) == (False, True)


# --- a gate ---


async def test_an_unreachable_upstream_is_down_for_all_models_an_error_for_one() -> None:
    one = gate()
    await failing(one, FAILED, "a", times=2)
    assert one.seconds_open("a") > 0
    assert one.seconds_open("b") == 0
    with pytest.raises(UpstreamBusy) as refused:
        await enter_model(one, "a")
    assert (refused.value.status, refused.value.reason) == (503, "upstream_down")
    await enter_model(one, "b")
    await failing(one, UNSENT, "b", times=2)
    assert one.seconds_open("c") > 0


async def enter_model(one: ConcurrencyLimiter, model: str) -> None:
    async with one.acquire(model, interactive=False) as visit:
        visit.record_success()


@pytest.mark.parametrize(
    "error",
    [
        UpstreamFailed("x", reason="upstream_400"),
        UpstreamFailed("x", reason="upstream_401"),
        UpstreamFailed("x", reason="upstream_429"),
        UpstreamFailed("x", reason="upstream_garbage"),
        LimitReached("x", reason="turn_limit"),
    ],
    ids=lambda error: error.reason,
)
async def test_an_upstream_that_answers_with_an_error_of_the_request_is_not_down(
    error: Exception,
) -> None:
    one = gate()
    await failing(one, FAILED)
    await failing(one, error)
    await failing(one, FAILED)
    assert one.seconds_open("m") == 0
    await failing(one, error, times=5)
    assert one.seconds_open("m") == 0


async def test_a_failure_after_the_first_output_does_not_count() -> None:
    one = gate()

    async def cut_off() -> None:
        async with one.acquire("m", interactive=False) as visit:
            visit.record_success()
            raise FAILED

    for _ in range(3):
        with pytest.raises(UpstreamFailed):
            await cut_off()
    assert one.seconds_open("m") == 0


async def test_the_limit_holds_and_foreground_calls_go_first() -> None:
    one, order = gate(2), list[str]()
    async with AsyncExitStack() as rest:
        for _ in range(2):
            await rest.enter_async_context(inside(one))
        waiting = [asyncio.create_task(enter(one, order, "background")) for _ in range(2)]
        await settle()
        waiting += [
            asyncio.create_task(enter(one, order, "interactive", interactive=True))
            for _ in range(2)
        ]
        await settle()
        with pytest.raises(UpstreamBusy) as refused:
            await enter(one, order, "too many")
        assert (refused.value.status, refused.value.reason) == (429, "upstream_full")
        assert order == []
    await asyncio.gather(*waiting)
    assert order == ["interactive"] * 2 + ["background"] * 2


async def test_a_call_that_waits_too_long_or_is_cancelled_takes_no_slot() -> None:
    one, order = gate(1, wait=0.01), list[str]()
    async with inside(one):
        with pytest.raises(UpstreamBusy):
            await enter(one, order, "late")
    one = gate(1)
    async with inside(one):
        gone = [
            asyncio.create_task(enter(one, order, "gone", interactive=interactive))
            for interactive in (True, False)
        ]
        await settle()
        gone[1].cancel()
        await settle()
        gone[0].cancel()  # and in the same moment, before it has noticed, its turn would come
    await asyncio.gather(*gone, return_exceptions=True)
    await enter(one, order, "next")
    async with inside(one):
        value = asyncio.create_task(enter(one, order, "given"))
        await settle()
    value.cancel()  # it has been given the place and has not begun
    await asyncio.gather(value, return_exceptions=True)
    await enter(one, order, "last")
    assert order == ["next", "last"]


async def test_circuits_of_models_do_not_grow_without_bound() -> None:
    one = gate(failures=100)
    await enter_model(one, "sound")
    assert not one._model_circuits
    for number in range(1100):
        await failing(one, FAILED, f"model-{number}")
    assert len(one._model_circuits) == 1000


async def test_operators_see_what_runs_waits_and_is_refused_but_no_words_of_a_failure() -> None:
    one = gate(limit=1)
    assert one.state().circuits == ()
    await failing(one, FAILED, model="broken", times=2)
    async with inside(one):
        waiting = asyncio.create_task(enter(one, [], "second"))
        await settle()
        state = one.state()
        assert (state.running, state.limit, state.waiting) == (1, 1, 1)
    await waiting
    [circuit] = state.circuits
    assert (circuit.model, circuit.reason) == ("broken", "upstream_500")
    assert circuit.seconds > 3000
    assert (state.last_reason, state.last_failed_at > 0) == ("upstream_500", True)
    await failing(one, UNSENT, times=2)
    assert {each.model for each in one.state().circuits} == {None, "broken"}
