"""Parts of what a web process has."""

import asyncio

import pytest

from models.errors import ShareUsedUp, Unavailable
from models.load.budget import Reservation, SharedBudget


def test_a_project_gets_its_part_and_the_first_one_always() -> None:
    share = SharedBudget("things", total=10, of_project=6)
    first = share.reserve("a", 20)
    with pytest.raises(ShareUsedUp):
        share.reserve("a")
    with pytest.raises(Unavailable):
        share.reserve("b")
    first.release()
    first.release()
    assert share.used == 0
    kept = share.reserve("a", 6)
    with pytest.raises(ShareUsedUp):
        share.reserve("a")
    assert share.reserve("b", 4).amount == 4
    kept.resize(2)
    with pytest.raises(Unavailable):
        share.reserve("c", 5)
    assert share.used == 6


async def test_a_request_waits_for_others_to_end() -> None:
    share = SharedBudget("things", total=10, of_project=10, wait=30)
    first, second = share.reserve("a", 8), Reservation(share, "b")
    waiting = asyncio.create_task(second.grow(8))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    await waiting
    assert second.amount == 8


async def test_few_requests_of_a_project_wait() -> None:
    share = SharedBudget("things", total=10, of_project=10, wait=30)
    share.reserve("other", 10)
    waiting = [asyncio.create_task(Reservation(share, "a").grow(1)) for _ in range(20)]
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 4:
        more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert all(isinstance(task.exception(), Unavailable) for task in done)
    assert len(pending) == 16
    for task in pending:
        task.cancel()


async def test_bodies_that_have_arrived_do_not_wait_for_each_other() -> None:
    share = SharedBudget("things", total=10, of_project=8, wait=30)
    bodies = [Reservation(share, "a") for _ in range(4)]
    for body in bodies:
        body.is_arriving = True
        await body.grow(2)
    # The last one arrives still.
    waiting = [asyncio.create_task(body.grow_to_decode(20)) for body in bodies[:3]]
    for body, task in zip(bodies, waiting, strict=False):
        await task
        assert [other.amount for other in bodies].count(20) == 1
        body.release()
    assert share.used == 2
    bodies[3].release()
    assert share.used == 0
    assert share.reserve("a", 20).amount == 20, "nothing is left of them"


async def test_a_body_that_has_no_memory_for_its_objects_is_refused() -> None:
    share = SharedBudget("things", total=10, of_project=8, wait=0)
    first, second = share.reserve("a", 4), Reservation(share, "a")
    second.is_arriving = True
    await second.grow(2)
    with pytest.raises(ShareUsedUp):
        await second.grow_to_decode(5)
    first.release()
    await second.grow_to_decode(5)
    assert share.used == 5


async def test_projects_take_turns_at_what_is_free() -> None:
    share = SharedBudget("things", total=10, of_project=8, wait=30)
    first, bodies = share.reserve("a", 20), [Reservation(share, project) for project in "aaabb"]
    waiting = [asyncio.create_task(body.grow(8)) for body in bodies]
    await asyncio.sleep(0)
    served = list[str]()
    while True:
        first.release()
        await asyncio.sleep(0)
        ready = [body for body in bodies if body.amount]
        if not ready:
            break
        (first,) = ready
        served.append(first.project)
    await asyncio.gather(*waiting)
    assert "".join(served) == "ababa"
