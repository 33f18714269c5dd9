"""Requests that are gathered into groups."""

import asyncio

import pytest

from models.ownership.grouping import GroupedRequests
from tests.support.api import until


class Statements:
    """Records each group, and answers it when the test allows that."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def execute(self, group: list[int]) -> list[int]:
        self.groups.append(group)
        await self.may_answer.wait()
        if 13 in group:
            raise ValueError(group)
        return [number * 10 for number in group]


async def test_a_request_alone_is_sent_at_once_and_those_that_follow_go_together() -> None:
    statements = Statements()
    requests = GroupedRequests(statements.execute)
    statements.may_answer.set()
    assert await requests.submit(0) == 0
    statements.may_answer.clear()
    first = asyncio.ensure_future(requests.submit(1))
    await until(lambda: len(statements.groups) == 2)
    later = [asyncio.ensure_future(requests.submit(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    statements.may_answer.set()
    assert await asyncio.gather(first, *later) == [10, 20, 30, 40]
    assert statements.groups == [[0], [1], [2, 3, 4]]


async def test_a_statement_without_an_answer_holds_the_next_ones_up_only_for_a_moment() -> None:
    statements = Statements()
    requests = GroupedRequests(statements.execute)
    tasks: list[asyncio.Task[int]] = []
    for count in range(1, 5):
        tasks.append(asyncio.ensure_future(requests.submit(count)))
        await until(lambda: len(statements.groups) == count, every=0.001)  # noqa: B023
    tasks += [asyncio.ensure_future(requests.submit(number)) for number in (5, 6)]
    statements.may_answer.set()
    assert await asyncio.gather(*tasks) == [10, 20, 30, 40, 50, 60]
    assert statements.groups == [[1], [2], [3], [4], [5, 6]]


async def test_an_error_is_raised_for_each_request_of_the_group_and_for_no_other() -> None:
    statements = Statements()
    statements.may_answer.set()
    requests = GroupedRequests(statements.execute)
    results = await asyncio.gather(*map(requests.submit, (12, 13)), return_exceptions=True)
    assert list(map(type, results)) == [ValueError, ValueError]
    assert await requests.submit(14) == 140


async def test_a_group_has_a_bounded_size_and_a_large_request_is_sent_alone() -> None:
    statements = Statements()
    statements.may_answer.set()
    requests = GroupedRequests(statements.execute, size_of=lambda number: number * 1024)
    sizes = [600, 500, 5000, 100, 200]
    await asyncio.gather(*map(requests.submit, sizes))
    assert statements.groups == [[600], [500], [5000], [100, 200]]
    await asyncio.gather(*map(requests.submit, [0] * 120))
    assert [len(group) for group in statements.groups[4:]] == [50, 50, 20]


async def test_a_cancelled_request_is_carried_out_and_disturbs_no_other() -> None:
    statements = Statements()
    requests = GroupedRequests(statements.execute)
    cancelled, other = (asyncio.ensure_future(requests.submit(number)) for number in (1, 2))
    await until(lambda: statements.groups)
    cancelled.cancel()
    statements.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (await other, statements.groups) == (20, [[1, 2]])
