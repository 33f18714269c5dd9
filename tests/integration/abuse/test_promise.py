"""What attacks must not do to others (tests/support/abuse.py), and that it would be noticed."""

import asyncio

import pytest

from tests.support.abuse import AttackedStack


async def test_an_attack_that_is_refused_harms_nobody(attacked: AttackedStack) -> None:
    async with attacked.attack("a URL of 1 MiB") as attack:
        reader, writer = await asyncio.open_connection("127.0.0.1", attacked.stack.webs[0].port)
        writer.write(b"GET /" + b"x" * 1024 * 1024)
        attack.count(int((await reader.readline()).split()[1]))
        writer.close()
    assert attack.answers == {414: 1}
    assert set(attack.peaks) == {one.name for one in attacked.stack.started}
    assert min(attack.peaks.values()) > 30_000_000


@pytest.mark.long  # while all CPUs are busy, a stall counts as a wait for one of them
async def test_a_web_process_that_stands_still_is_noticed(attacked: AttackedStack) -> None:
    async def stall() -> None:
        async with attacked.attack("a stall of a second"):
            attacked.stack.webs[0].pause()
            await asyncio.sleep(1)
            attacked.stack.webs[0].resume()

    with pytest.raises(AssertionError, match="requests were too slow"):
        await stall()


async def test_a_process_over_its_memory_limit_is_killed_and_noticed(
    attacked: AttackedStack,
) -> None:
    web = attacked.stack.webs[0]

    async def grow() -> None:
        async with attacked.attack("a process that grows"):
            attacked.limit(web, 1024 * 1024)

    with pytest.raises(AssertionError, match=f"{web.name} was ended with "):
        await grow()
    assert attacked.stack.webs[0] is not web
    async with attacked.attack("nothing"):
        pass
