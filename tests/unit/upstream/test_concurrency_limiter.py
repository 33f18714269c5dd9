"""The limiter of an upstream: how many calls run, which go first, and when none do."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count
from uuid import UUID

import pytest

from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamBusy, UpstreamFailed, UpstreamUnreached
from models.ids import PROJECT, admin_id
from worker.upstream.circuits import Circuit, Permit
from worker.upstream.upstreams import ConcurrencyLimiter

NAMES: Iterator[int] = count()
A, B, C = (UUID(int=number) for number in range(3))
"""Projects."""
FAILED = UpstreamFailed("x", reason="upstream_500")
UNSENT = UpstreamUnreached("x", reason="upstream_unreachable")


def gate(
    limit: int | None = None, *, wait: float = 60, failures: int = 2, foreground: int = 100
) -> ConcurrencyLimiter:
    value = {
        "name": f"gate-{next(NAMES)}",
        "wait": timedelta(seconds=wait),
        "waiting_per_project": foreground,
        "circuit_failures": failures,
        "circuit_pause": timedelta(hours=1),
    }
    return ConcurrencyLimiter(UpstreamSettings.model_validate(value), limit)


@asynccontextmanager
async def inside(
    one: ConcurrencyLimiter, model: str = "m", project: UUID = A
) -> AsyncIterator[Permit]:
    async with one.acquire(model, project, interactive=False) as visit:
        yield visit


async def enter(
    one: ConcurrencyLimiter,
    order: list[str],
    name: str,
    project: UUID = A,
    *,
    interactive: bool = False,
) -> None:
    """Acquires a permit, records it, and releases it at once."""
    async with one.acquire("m", project, interactive=interactive):
        order.append(name)


async def failing(
    one: ConcurrencyLimiter,
    error: Exception,
    model: str = "m",
    times: int = 1,
    project: UUID = A,
) -> None:
    for _ in range(times):
        with pytest.raises(type(error)):
            async with one.acquire(model, project, interactive=False):
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
    assert one.seconds_open("a", A) > 0
    assert one.seconds_open("b", A) == 0
    with pytest.raises(UpstreamBusy) as refused:
        await enter_model(one, "a")
    assert (refused.value.status, refused.value.reason) == (503, "upstream_down")
    await enter_model(one, "b")
    await failing(one, UNSENT, "b", times=2)
    assert one.seconds_open("c", A) > 0


async def enter_model(one: ConcurrencyLimiter, model: str, project: UUID = A) -> None:
    async with one.acquire(model, project, interactive=False) as visit:
        visit.record_success()


async def test_requests_of_one_project_open_no_circuit_for_another() -> None:
    one = gate(failures=3)
    await failing(one, FAILED, times=3)
    assert one.seconds_open("m", A) > 0
    assert one.seconds_open("m", B) == 0
    with pytest.raises(UpstreamBusy):
        await enter_model(one, "m")
    await enter_model(one, "m", B)
    await failing(one, FAILED, times=2, project=B)
    await failing(one, FAILED, project=C)
    assert one.seconds_open("m", A) > 0
    assert {each.project for each in one.state().circuits} == {None, admin_id(PROJECT, A)}


async def test_failures_of_two_projects_in_a_row_open_the_circuit_for_all() -> None:
    one = gate(failures=3)
    await failing(one, FAILED, times=2)
    await enter_model(one, "m", B)
    await failing(one, FAILED, times=2, project=B)
    assert one.seconds_open("m", C) == 0, "an answer, of any project, starts the count anew"
    await failing(one, FAILED, project=A)
    assert one.seconds_open("m", C) > 0


def test_a_project_whose_own_circuit_is_open_does_not_keep_that_of_all_open() -> None:
    hour, second = timedelta(hours=1), timedelta(seconds=1)
    model, own = Circuit(1, hour), Circuit(1, second)
    for circuit in (model, own):
        circuit.record_failure(0.0, as_probe=False)
    Permit(Circuit(1, hour), model, own, A).record_failure(FAILED)
    assert (model.wait(0.0), own.wait(time.monotonic()) > 1) == (3600, True)
    Permit(Circuit(1, hour), model, Circuit(9, hour), B).record_failure(FAILED)
    assert model.wait(time.monotonic()) > 3600, "a probe of another project"
    Permit(Circuit(1, hour), model, own, A).record_success()
    assert (model.is_open, own.is_open) == (False, False)


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
    assert one.seconds_open("m", A) == 0
    await failing(one, error, times=5)
    assert one.seconds_open("m", A) == 0


async def test_a_failure_after_the_first_output_does_not_count() -> None:
    one = gate()

    async def cut_off() -> None:
        async with one.acquire("m", A, interactive=False) as visit:
            visit.record_success()
            raise FAILED

    for _ in range(3):
        with pytest.raises(UpstreamFailed):
            await cut_off()
    assert one.seconds_open("m", A) == 0


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


async def test_projects_take_turns_however_many_calls_of_one_wait() -> None:
    one, order = gate(3), list[str]()
    async with AsyncExitStack() as rest:
        for _ in range(3):
            await rest.enter_async_context(inside(one))
        waiting = []
        for name, project in [("a", A), ("a", A), ("a", A), ("b", B), ("c", C), ("b", B)]:
            waiting.append(asyncio.create_task(enter(one, order, name, project)))
            await settle()
        with pytest.raises(UpstreamBusy):
            await enter(one, order, "too many")
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c", "a", "b", "a"]


async def test_foreground_calls_do_not_keep_background_calls_out() -> None:
    one, order = gate(1), list[str]()
    async with inside(one):
        waiting = [
            asyncio.create_task(enter(one, order, "foreground", interactive=True))
            for _ in range(10)
        ]
        waiting += [
            asyncio.create_task(enter(one, order, "background", project)) for project in (B, C)
        ]
        await settle()
    await asyncio.gather(*waiting)
    assert [at for at, name in enumerate(order) if name == "background"] == [3, 7]


async def test_a_project_with_too_many_foreground_calls_is_refused_and_no_other_is() -> None:
    one, order = gate(1, foreground=2), list[str]()
    async with inside(one):
        waiting = [asyncio.create_task(enter(one, order, "a", interactive=True)) for _ in range(2)]
        await settle()
        with pytest.raises(UpstreamBusy) as refused:
            await enter(one, order, "too many", interactive=True)
        assert (refused.value.status, refused.value.reason) == (429, "upstream_full")
        waiting.append(asyncio.create_task(enter(one, order, "b", B, interactive=True)))
        await settle()
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "a"]


async def test_one_response_of_each_project_that_waited_in_vain_returns_soon() -> None:
    one = gate(2, wait=0.01)
    async with inside(one), inside(one):
        projects = (A, A, B)
        waiting = [asyncio.create_task(enter(one, [], "late", each)) for each in projects]
        await settle()
        refused = asyncio.create_task(enter(one, [], "too many", A))
        failures = await asyncio.gather(*waiting, refused, return_exceptions=True)
    busy = [failure for failure in failures if isinstance(failure, UpstreamBusy)]
    assert [failure.returns_soon for failure in busy] == [False, True, True, False]


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
    assert not one._circuits._models
    for number in range(1100):
        await failing(one, FAILED, f"model-{number}")
    assert len(one._circuits._models) == len(one._circuits._projects) == 1000


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
