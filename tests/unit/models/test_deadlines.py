"""A timeout of a stream: it ends the stream, also if a cancellation is lost, and nothing else."""

import asyncio
from contextlib import suppress

import pytest

from models import tasks
from models.tasks import IdleTimeout


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_AGAIN", 0.01)


async def _stay_silent(idle_timeout: IdleTimeout) -> None:
    idle_timeout.set_deadline(asyncio.get_running_loop().time())
    await asyncio.Event().wait()


async def _lose_cancellations(idle_timeout: IdleTimeout, count: int) -> None:
    for _ in range(count):
        with suppress(asyncio.CancelledError):
            await _stay_silent(idle_timeout)
    await asyncio.Event().wait()


async def test_a_silent_stream_ends_at_its_deadline() -> None:
    timeout = IdleTimeout()
    with pytest.raises(TimeoutError), timeout.extend():
        await _stay_silent(timeout)
    assert timeout.expired


async def test_a_stream_that_has_lost_a_cancellation_is_cancelled_again() -> None:
    timeout = IdleTimeout()
    with pytest.raises(TimeoutError), timeout.extend():
        await _lose_cancellations(timeout, 1)


async def test_a_lost_cancellation_does_not_end_the_task_of_later_streams() -> None:
    """It had: the publisher of a worker ended, and its streams came seconds late from then on."""
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        timeout = IdleTimeout()
        with suppress(ConnectionError), timeout.extend():
            with suppress(asyncio.CancelledError):
                await _stay_silent(timeout)
            raise ConnectionError
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError), timeout.extend():
            await _lose_cancellations(timeout, 2)
        assert task.cancelling() == 0


async def test_a_cancellation_of_somebody_else_stays_one_beside_the_timeout() -> None:
    begun = asyncio.Event()

    async def stream() -> None:
        timeout = IdleTimeout()
        with timeout.extend():
            with suppress(asyncio.CancelledError):
                await _stay_silent(timeout)
            timeout.pause()
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stream())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
