"""The limit of creates that a web process works on at a time."""

import asyncio
import itertools
from uuid import UUID, uuid4

import pytest

from models.config.groups import LimitSettings
from models.db.queries.api_keys import ApiKey
from models.errors import Unavailable
from models.load.budget import SharedBudget
from tests.support.api import until
from web import admission
from web.admission import IN_AN_ITERATION, CreateAdmission
from web.hooks import Hooks
from web.http.body import JsonBody

_PROJECT = uuid4()
_OF_ONE_PROJECT = 43
"""Two thirds of all."""


class _Creates:
    """Creates that work until the test lets them end."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        streams = SharedBudget("streams", 1, 1)
        self._admission = CreateAdmission(LimitSettings(), streams, Hooks())
        self._may_end = asyncio.Semaphore(0)

    async def create(self, number: int, project: UUID = _PROJECT) -> None:
        body = JsonBody({}, 2)
        key = ApiKey(uuid4(), project, "project", "bb-1", b"")
        await self._admission.admit(body, key)
        try:
            self.begun.append(number)
            await self._may_end.acquire()
        finally:
            body.release()
            body.release()

    def end(self, count: int) -> None:
        for _ in range(count):
            self._may_end.release()


async def test_a_burst_of_creates_is_worked_on_in_the_order_of_arrival_and_few_at_a_time() -> None:
    creates = _Creates()
    count = _OF_ONE_PROJECT + 20
    tasks = [asyncio.create_task(creates.create(number)) for number in range(count)]
    await until(lambda: len(creates.begun) == _OF_ONE_PROJECT)
    await asyncio.sleep(0)
    assert len(creates.begun) == _OF_ONE_PROJECT
    creates.end(5)
    await until(lambda: len(creates.begun) == _OF_ONE_PROJECT + 5)
    creates.end(count)
    await asyncio.gather(*tasks)
    assert creates.begun == list(range(count))


async def test_a_create_that_waits_too_long_is_refused_and_takes_no_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "_MAX_WAIT", 0.01)
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(_OF_ONE_PROJECT)]
    await until(lambda: len(creates.begun) == _OF_ONE_PROJECT)
    with pytest.raises(Unavailable) as refused:
        await creates.create(-1)
    assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
    creates.end(_OF_ONE_PROJECT + 1)
    await asyncio.gather(*tasks)
    await creates.create(_OF_ONE_PROJECT)
    assert creates.begun == list(range(_OF_ONE_PROJECT + 1))


async def test_a_burst_of_creates_lets_the_event_loop_do_other_work_in_between() -> None:
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(_OF_ONE_PROJECT)]
    seen = [0]
    while seen[-1] < _OF_ONE_PROJECT:
        await asyncio.sleep(0)
        seen.append(len(creates.begun))
    assert max(after - before for before, after in itertools.pairwise(seen)) == IN_AN_ITERATION
    creates.end(_OF_ONE_PROJECT)
    await asyncio.gather(*tasks)


async def test_a_create_that_is_given_up_while_it_waits_takes_no_permit() -> None:
    creates = _Creates()
    tasks = [asyncio.create_task(creates.create(number)) for number in range(IN_AN_ITERATION + 2)]
    await asyncio.sleep(0)
    tasks[IN_AN_ITERATION].cancel()
    creates.end(len(tasks))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results].count(asyncio.CancelledError) == 1
    creates.end(_OF_ONE_PROJECT)
    await asyncio.gather(*(creates.create(number) for number in range(_OF_ONE_PROJECT)))
    assert len(creates.begun) == IN_AN_ITERATION + 1 + _OF_ONE_PROJECT


async def test_a_create_of_another_project_does_not_wait_behind_a_burst() -> None:
    creates = _Creates()
    burst = [asyncio.create_task(creates.create(number)) for number in range(500)]
    await until(lambda: len(creates.begun) == _OF_ONE_PROJECT)
    others = [asyncio.create_task(creates.create(1000 + n, uuid4())) for n in range(3)]
    await until(lambda: 1000 in creates.begun)
    creates.end(3)
    await until(lambda: {1000, 1001, 1002} <= set(creates.begun))
    assert len(creates.begun) <= _OF_ONE_PROJECT + 3
    creates.end(600)
    await asyncio.gather(*burst, *others)
