"""The limit of creates that a web process works on at a time."""

import asyncio
import itertools

import pytest

from models.errors import Unavailable
from tests.support.api import until
from web.responses import slots
from web.responses.slots import MAX_CREATES, MAX_IN_A_TURN, CreateSlots


class _Creates:
    """Creates that work until the test lets them end."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._slots = CreateSlots()
        self._may_end = asyncio.Semaphore(0)

    async def create(self, number: int) -> None:
        async with self._slots:
            self.begun.append(number)
            await self._may_end.acquire()

    def end(self, count: int) -> None:
        for _ in range(count):
            self._may_end.release()


async def test_a_burst_of_creates_is_worked_on_in_the_order_of_arrival_and_few_at_a_time() -> None:
    creates = _Creates()
    count = MAX_CREATES + 20
    tasks = [asyncio.create_task(creates.create(number)) for number in range(count)]
    await until(lambda: len(creates.begun) == MAX_CREATES)
    await asyncio.sleep(0)
    assert len(creates.begun) == MAX_CREATES
    creates.end(5)
    await until(lambda: len(creates.begun) == MAX_CREATES + 5)
    creates.end(count)
    await asyncio.gather(*tasks)
    assert creates.begun == list(range(count))


async def test_a_create_that_waits_too_long_is_refused_and_takes_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_MAX_WAIT", 0.01)
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(MAX_CREATES)]
    await until(lambda: len(creates.begun) == MAX_CREATES)
    with pytest.raises(Unavailable) as refused:
        await creates.create(-1)
    assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
    creates.end(MAX_CREATES + 1)
    await asyncio.gather(*tasks)
    await creates.create(MAX_CREATES)
    assert creates.begun == list(range(MAX_CREATES + 1))


async def test_a_burst_of_creates_lets_the_event_loop_do_other_work_in_between() -> None:
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(MAX_CREATES)]
    seen = [0]
    while seen[-1] < MAX_CREATES:
        await asyncio.sleep(0)
        seen.append(len(creates.begun))
    assert max(after - before for before, after in itertools.pairwise(seen)) == MAX_IN_A_TURN
    creates.end(MAX_CREATES)
    await asyncio.gather(*tasks)


async def test_a_create_that_is_given_up_while_it_waits_takes_neither_slot_nor_turn() -> None:
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(MAX_IN_A_TURN + 2)]
    await asyncio.sleep(0)
    tasks[MAX_IN_A_TURN].cancel()
    creates.end(len(tasks))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results].count(asyncio.CancelledError) == 1
    creates.end(MAX_CREATES)
    await asyncio.gather(*(creates.create(number) for number in range(MAX_CREATES)))
    assert len(creates.begun) == MAX_IN_A_TURN + 1 + MAX_CREATES
