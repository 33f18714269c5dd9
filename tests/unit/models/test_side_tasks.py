"""Side tasks: a process whose task has failed must exit, and one that stops must end them all."""

import asyncio
from typing import NoReturn

import pytest

from models.tasks import SideTasks, cancel_all


class ProcessExited(BaseException):
    """Stands for the end of the process."""


def exit_process() -> NoReturn:
    raise ProcessExited


@pytest.mark.parametrize("error", [ValueError("no heartbeat"), asyncio.CancelledError()])
async def test_a_process_whose_side_task_failed_exits(error: BaseException) -> None:
    exits: asyncio.Queue[BaseException] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: exits.put_nowait(context["exception"]))
    tasks = SideTasks(exit_process)

    async def fail() -> None:
        raise error

    try:
        tasks.start(fail(), "heartbeat")
        assert isinstance(await exits.get(), ProcessExited)
    finally:
        loop.set_exception_handler(None)


async def test_a_process_that_stops_waits_for_a_task_that_lost_its_cancellation() -> None:
    cancellations = 0

    async def lose_first_cancellation() -> None:
        nonlocal cancellations
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancellations += 1
                if cancellations == 2:
                    raise

    task = asyncio.create_task(lose_first_cancellation())
    await asyncio.sleep(0)
    await cancel_all({task})
    assert task.cancelled()
    assert cancellations == 2


async def test_a_side_task_that_ended_or_was_cancelled_does_not_end_the_process() -> None:
    tasks = SideTasks(exit_process)
    tasks.start(asyncio.sleep(0))
    tasks.start(asyncio.sleep(60))
    await asyncio.sleep(0.01)
    await tasks.cancel()
