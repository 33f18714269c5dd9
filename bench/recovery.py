"""How long responses wait after `kill -9`: of a worker, of a web process, of a whole machine.

All settings have their defaults. A response counts from the kill to the first delta of its next
attempt, at a reader that stays connected to a web process; a foreground response whose web process
was killed, to the end of its call of the upstream.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import aiohttp
import psycopg

from bench.deployment import Cluster, Web, Worker, cluster
from bench.figures import RecoveryTimes
from bench.held_upstream import HeldUpstream, held_upstream
from models.ids import response_id as public_id

TIE_AGE = 6.0
"""Seconds after a start until a process may declare others dead by their ties."""
TIMEOUT = 60.0
STARTED_TOGETHER = 50
"""More creates in the same moment would wait too long for the pool of the web process."""
_numbers = count()


async def run(folder: Path, *, quick: bool) -> AsyncIterator[RecoveryTimes]:
    """Kills processes and measures; each kind of death in a deployment of its own."""
    rounds = 1 if quick else 5
    yield await _one_of_three(folder / "worker", rounds)
    yield await _one_survivor(folder / "survivor", 200 if quick else 1000)
    yield await _web(folder / "web", rounds)
    for times in await _machine(folder / "machine", rounds):
        yield times


class Stream:
    """A background response and its reader, or a foreground response."""

    def __init__(self, client: aiohttp.ClientSession, *, background: bool) -> None:
        self.model = f"held-{next(_numbers)}"
        self.background = background
        self.id = ""
        self._client = client
        self.deltas: dict[str, float] = {}
        """Each text that was received -> when (monotonic clock)."""

    async def read(self) -> None:
        """Creates the response and reads its events until its web process dies."""
        body = {
            "model": self.model,
            "input": "Go.",
            "stream": True,
            "background": self.background,
        }
        async with self._client.post("/v1/responses", json=body) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    self._receive(json.loads(line[6:]))

    def _receive(self, event: dict[str, object]) -> None:
        if event["type"] == "response.created":
            response = event["response"]
            assert isinstance(response, dict)
            self.id = response["id"]
        elif event["type"] == "response.output_text.delta":
            self.deltas.setdefault(str(event["delta"]), time.monotonic())

    def first_delta_after(self, moment: float) -> float | None:
        """When the first delta of a later attempt came."""
        return next((at for text, at in self.deltas.items() if text != "1" and at > moment), None)


@asynccontextmanager
async def _streams(
    clients: Iterable[aiohttp.ClientSession], number: int, *, background: bool = True
) -> AsyncIterator[list[Stream]]:
    """So many responses at each client, each with its first delta."""
    streams = [Stream(client, background=background) for client in clients for _ in range(number)]
    readers = []
    try:
        for first in range(0, len(streams), STARTED_TOGETHER):
            starting = streams[first : first + STARTED_TOGETHER]
            readers += [asyncio.create_task(stream.read()) for stream in starting]
            await _until(lambda: all(stream.deltas for stream in starting))  # noqa: B023
        yield streams
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _one_of_three(folder: Path, rounds: int) -> RecoveryTimes:
    seconds: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        [web], workers = await started.start(webs=1, workers=3)
        async with web.client(started.key) as client:
            for _ in range(rounds):
                await asyncio.sleep(TIE_AGE)
                async with _streams([client], 30) as streams:
                    victim = workers.pop(0)
                    seconds += await _kill(started, streams, [], [victim])
                    await _cancel(client, streams)
                workers += (await started.start(workers=1))[1]
    return RecoveryTimes("one of three workers, 30 streams", tuple(seconds), 3.0, 6.0)


async def _one_survivor(folder: Path, number: int) -> RecoveryTimes:
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        [web], [victim] = await started.start(webs=1, workers=1, streams=1000)
        async with web.client(started.key) as client, _streams([client], number) as streams:
            await started.start(workers=1, streams=1000)
            await asyncio.sleep(TIE_AGE)
            seconds = await _kill(started, streams, [], [victim])
    name = f"one of two workers, {number} streams"
    return RecoveryTimes(name, tuple(seconds), 5.0, 8.0)


async def _web(folder: Path, rounds: int) -> RecoveryTimes:
    seconds: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        webs, _ = await started.start(webs=2, workers=2)
        for _ in range(rounds):
            await asyncio.sleep(TIE_AGE)
            victim = webs.pop(0)
            async with (
                victim.client(started.key) as client,
                _streams([client], 10, background=False) as streams,
            ):
                seconds += await _kill_web(upstream, streams, victim)
            webs += (await started.start(webs=1))[0]
    return RecoveryTimes("one of two web processes, foreground ended", tuple(seconds), 3.0, 6.0)


async def _machine(folder: Path, rounds: int) -> list[RecoveryTimes]:
    """Two machines with a web process and two workers each; all processes of one are killed."""
    background: list[float] = []
    foreground: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        webs, workers = await started.start(webs=2, workers=4)
        for _ in range(rounds):
            await asyncio.sleep(TIE_AGE)
            first, second = webs
            async with (
                first.client(started.key) as dying,
                second.client(started.key) as staying,
                _streams([staying], 30) as streams,
                _streams([dying], 10, background=False) as waiting,
            ):
                killed_at, owned = await _kill_all(started, streams, [first], workers[:2])
                background += await _recovery_times(streams, owned, killed_at)
                foreground += await _ending_times(upstream, waiting, killed_at)
                await _cancel(staying, streams)
            new_webs, new_workers = await started.start(webs=1, workers=2)
            webs, workers = [second, *new_webs], workers[2:] + new_workers
    return [
        RecoveryTimes("a machine with half of all processes", tuple(background), 3.0, 6.0),
        RecoveryTimes("the same, foreground ended", tuple(foreground), 3.0, 6.0),
    ]


async def _kill(
    started: Cluster, streams: list[Stream], webs: list[Web], workers: list[Worker]
) -> list[float]:
    killed_at, owned = await _kill_all(started, streams, webs, workers)
    return await _recovery_times(streams, owned, killed_at)


async def _kill_all(
    started: Cluster, streams: list[Stream], webs: list[Web], workers: list[Worker]
) -> tuple[float, set[str]]:
    """kill -9. Returns when, and the ids of the responses that these workers ran."""
    owned = _owned_by(started.dsn, workers)
    killed_at = time.monotonic()
    for process in [*webs, *workers]:
        process.kill()
    return killed_at, owned & {stream.id for stream in streams}


def _owned_by(dsn: str, workers: list[Worker]) -> set[str]:
    query = (
        "SELECT r.id FROM responses r JOIN workers w ON w.id = r.worker"
        " WHERE w.pid = ANY(%s) AND NOT w.dead AND r.status = 'in_progress'"
    )
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(query, [[worker.pid for worker in workers]]).fetchall()
    return {public_id(row[0]) for row in rows}


async def _recovery_times(streams: list[Stream], owned: set[str], killed_at: float) -> list[float]:
    """Seconds from the kill to the first delta of the next attempt of each."""
    victims = [stream for stream in streams if stream.id in owned]
    await _until(lambda: all(stream.first_delta_after(killed_at) for stream in victims))
    return [(stream.first_delta_after(killed_at) or 0) - killed_at for stream in victims]


async def _kill_web(upstream: HeldUpstream, streams: list[Stream], victim: Web) -> list[float]:
    killed_at = time.monotonic()
    victim.kill()
    return await _ending_times(upstream, streams, killed_at)


async def _ending_times(
    upstream: HeldUpstream, streams: list[Stream], killed_at: float
) -> list[float]:
    """Seconds from the kill to the end of the last call of the upstream of each."""
    await _until(
        lambda: all(upstream.closed.get(stream.model, 0) > killed_at for stream in streams)
    )
    return [upstream.closed[stream.model] - killed_at for stream in streams]


async def _cancel(client: aiohttp.ClientSession, streams: list[Stream]) -> None:
    for stream in streams:
        async with client.post(f"/v1/responses/{stream.id}/cancel") as reply:
            assert reply.status == 200, await reply.text()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
