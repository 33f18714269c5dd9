"""Bursts of tasks that become ready at once."""

import asyncio
from uuid import UUID, uuid4

import pytest

from models.turns import Pace, ProjectSlots, Turns


async def test_callers_of_a_pace_go_on_one_by_one_in_their_order() -> None:
    pace, gone_on = Pace(0), list[int]()

    async def go_on(number: int) -> None:
        await pace.wait()
        gone_on.append(number)

    tasks = [asyncio.create_task(go_on(number)) for number in range(5)]
    counts = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        counts.append(len(gone_on))
    assert gone_on == list(range(5))
    assert set(counts) >= set(range(1, 6)), "others run between any two of them"


async def test_a_project_with_much_work_leaves_a_slot_and_takes_turns() -> None:
    slots, busy, other, third = ProjectSlots(3), uuid4(), uuid4(), uuid4()
    begun, ended = list[UUID](), asyncio.Semaphore(0)

    async def work(project: UUID) -> None:
        async with slots.take(project):
            begun.append(project)
            await ended.acquire()

    async def begin(*projects: UUID) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(work(project)) for project in projects]
        await asyncio.sleep(0)
        return tasks

    tasks = await begin(*[busy] * 10)
    assert begun == [busy] * 2, "one slot is for the others"
    tasks += await begin(other, other, third)
    assert begun == [busy, busy, other]
    for _ in range(len(tasks)):
        ended.release()
    await asyncio.gather(*tasks)
    assert begun[3:6] == [busy, other, third]
    assert begun[6:] == [busy] * 7


async def test_a_slot_is_free_again_after_its_work_was_cancelled_or_failed() -> None:
    slots, project = ProjectSlots(2), uuid4()
    hold = asyncio.Event()

    async def work() -> None:
        async with slots.take(project):
            await hold.wait()
            raise LookupError

    running, waiting, given_up = (asyncio.create_task(work()) for _ in range(3))
    await asyncio.sleep(0)
    given_up.cancel()
    running.cancel()
    await asyncio.wait([running, given_up])
    hold.set()
    with pytest.raises(LookupError):
        await waiting
    async with asyncio.timeout(5), slots.take(project):
        pass


async def test_callers_of_several_projects_go_on_in_turn() -> None:
    turns, busy, other = Turns(2), uuid4(), uuid4()
    done: list[UUID] = []

    async def work(project: UUID) -> None:
        await turns.wait(project)
        done.append(project)

    tasks = [asyncio.create_task(work(project)) for project in [busy] * 9 + [other] * 3]
    await asyncio.gather(*tasks)
    assert done[:2] == [busy] * 2
    assert done[2:8] == [busy, other] * 3
    assert done[8:] == [busy] * 4
