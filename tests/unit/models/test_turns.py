"""Bursts of tasks that become ready at once."""

import asyncio

from models.turns import Pace


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
