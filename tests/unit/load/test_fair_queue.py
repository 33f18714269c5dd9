"""Permits that projects share, and bursts of tasks that become ready at once."""

import asyncio
from uuid import UUID, uuid4

import pytest

from models.load.fair_queue import FairQueue
from models.load.pacing import Pacer


async def test_a_project_with_much_work_leaves_a_permit_and_projects_go_round_robin() -> None:
    queue, busy, other, third = FairQueue(3), uuid4(), uuid4(), uuid4()
    begun, ended = list[UUID](), asyncio.Semaphore(0)

    async def work(project: UUID) -> None:
        async with queue.permit(project):
            begun.append(project)
            await ended.acquire()

    async def begin(*projects: UUID) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(work(project)) for project in projects]
        await asyncio.sleep(0)
        return tasks

    tasks = await begin(*[busy] * 10)
    assert begun == [busy] * 2, "one permit is for the others"
    tasks += await begin(other, other, third)
    assert begun == [busy, busy, other]
    for _ in range(len(tasks)):
        ended.release()
    await asyncio.gather(*tasks)
    assert begun[3:6] == [busy, other, third]
    assert begun[6:] == [busy] * 7


async def test_a_permit_is_free_again_after_its_work_was_cancelled_or_failed() -> None:
    queue, project = FairQueue(2), uuid4()
    hold = asyncio.Event()

    async def work() -> None:
        async with queue.permit(project):
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
    async with asyncio.timeout(5), queue.permit(project):
        pass


async def test_callers_of_several_projects_go_on_round_robin() -> None:
    pacer, busy, other = Pacer(2), uuid4(), uuid4()
    done: list[UUID] = []

    async def work(project: UUID) -> None:
        await pacer.wait(project)
        done.append(project)

    tasks = [asyncio.create_task(work(project)) for project in [busy] * 9 + [other] * 3]
    await asyncio.gather(*tasks)
    assert done[:2] == [busy] * 2
    assert done[2:8] == [busy, other] * 3
    assert done[8:] == [busy] * 4


A, B, C, D = (UUID(int=number) for number in range(4))


class _Work:
    """Work that takes permits and gives them back when the test says so."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.begun = list[str]()
        self.tasks = dict[str, asyncio.Task[None]]()

    async def add(self, name: str, project: UUID, *, low: bool = False) -> None:
        async def begin() -> None:
            await self.queue.acquire(project, low=low)
            self.begun.append(name)

        self.tasks[name] = asyncio.create_task(begin())
        await asyncio.sleep(0)

    async def end(self, *projects: UUID) -> None:
        for project in projects:
            self.queue.release(project)
            await asyncio.sleep(0)


async def test_every_fourth_permit_is_for_work_of_low_priority() -> None:
    work = _Work(FairQueue(1, reserve=0))
    await work.add("first", A)
    for number in range(5):
        await work.add(f"low {number}", A, low=True)
    for number in range(5):
        await work.add(f"high {number}", A)
    assert work.queue.waiting == 10
    assert work.queue.waiting_of(A, low=True) == 5
    await work.end(*[A] * 10)
    assert work.begun[1:6] == ["high 0", "high 1", "high 2", "low 0", "high 3"]
    assert work.begun[6:] == ["high 4", "low 1", "low 2", "low 3", "low 4"]


async def test_a_permit_of_the_reserve_is_for_a_project_that_has_none() -> None:
    work = _Work(FairQueue(2, reserve=1))
    for name, project in (("a", A), ("a", A), ("a waits", A), ("b", B), ("b waits", B), ("c", C)):
        await work.add(name, project)
    assert work.begun == ["a", "a", "b"]
    assert not work.queue.try_acquire(D)
    await work.end(A)
    assert work.begun[3:] == ["c"], "the reserve is filled first"
    assert work.queue.used == 3
    await work.end(C, B)
    assert work.begun[4:] == ["a waits", "b waits"], "b has none any more"
    await work.end(A, A, B)
    assert work.queue.used == 0


async def test_without_a_limit_nothing_waits() -> None:
    queue = FairQueue(None, reserve=0)
    assert all(queue.try_acquire(A) for _ in range(1000))
    assert (queue.used, queue.waiting) == (1000, 0)


async def test_work_that_is_given_up_in_the_moment_of_its_permit_gives_it_to_the_next() -> None:
    work = _Work(FairQueue(1, reserve=0))
    for name in ("running", "given up", "next"):
        await work.add(name, A)
    work.queue.release(A)
    work.tasks["given up"].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.begun == ["running", "next"]
    assert work.queue.used == 1
