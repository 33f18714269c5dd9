"""How long responses wait after `kill -9`: of a worker, of all, of a web process, of a machine.

All settings have their defaults. A response counts from the kill to the first delta of its next
attempt, at a reader that stays connected to a web process; a foreground response whose web process
was killed, to the end of its call of the upstream.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import psycopg

from bench.deployment import Cluster, Web, Worker, cluster
from bench.figures import Goal, Row
from bench.held_upstream import HeldUpstream, held_upstream
from bench.http_client import Client
from bench.load import Load
from bench.profiling import Profiler
from models.ids import response_id as public_id

TIE_AGE = 6.0
"""Seconds after a start until a process may declare others dead by their ties."""
TIMEOUT = 60.0
MAX_P50, MAX = 3.0, 6.0
"""Seconds."""
MAX_P50_OF_ALL = 4.0
"""Seconds, if all workers are killed and started again."""
RESTART = 2.0
"""Seconds from the kill of all workers until they are started again, as by a supervisor."""
STARTED_TOGETHER = 50
_CREATED = b"event: response.created\n"
_DELTA = b"event: response.output_text.delta\n"
_numbers = count()


async def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Kills processes and measures; each kind of death in a deployment of its own."""
    for row in await _one_of_three(folder / "worker", load.rounds):
        yield row
    for row in await _one_survivor(folder / "survivor", load.held_streams, profiler):
        yield row
    if not load.kills_webs:
        return
    for row in await _web(folder / "web", load.rounds):
        yield row
    for row in await _machine(folder / "machine", load.rounds):
        yield row


class Stream:
    """A background response and its reader, or a foreground response."""

    def __init__(self, client: Client, *, background: bool) -> None:
        self.model = f"held-{next(_numbers)}"
        self.background = background
        self.id = ""
        self._client = client
        self._rest = b""
        self.deltas: dict[bytes, float] = {}
        """Each text that was received -> when (monotonic clock)."""

    async def read(self) -> None:
        """Creates the response and reads its events. Raises RequestFailed when its web process
        dies."""
        body = {
            "model": self.model,
            "input": "Go.",
            "stream": True,
            "background": self.background,
        }
        await self._client.stream(self._client.encode("POST", "/v1/responses", body), self._feed)

    def _feed(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(_CREATED):
                self.id = _string(frame, b'"id":"').decode()
            elif frame.startswith(_DELTA):
                self.deltas.setdefault(_string(frame, b'"delta":"'), time.monotonic())

    def first_delta_after(self, moment: float) -> float | None:
        """When the first delta of a later attempt came."""
        return next((at for text, at in self.deltas.items() if text != b"1" and at > moment), None)


def _string(frame: bytes, name: bytes) -> bytes:
    """The JSON string after the first `name` in a frame."""
    start = frame.index(name) + len(name)
    return frame[start : frame.index(b'"', start)]


@asynccontextmanager
async def _streams(
    clients: Iterable[Client], number: int, *, background: bool = True
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


async def run_restart(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Kills all workers of a deployment, again and again, and starts them 2 s later."""
    seconds: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        [web], workers = await started.start(webs=1, workers=2)
        await asyncio.sleep(TIE_AGE)
        with (
            Client(web.port, started.key) as client,
            profiler.recording("restart", {"web": web.pid}),
        ):
            for _ in range(load.rounds):
                async with _streams([client], 10) as streams:
                    killed_at, owned = await _kill_all(started, streams, [], workers)
                    await asyncio.sleep(RESTART)
                    _, workers = await started.start(workers=2)
                    seconds += await _recovery_times(streams, owned, killed_at)
                    await _cancel(client, streams)
    for row in _rows("kill -9 of all workers, started after 2 s", seconds, MAX_P50_OF_ALL):
        yield row


def _rows(name: str, seconds: list[float], max_p50: float = MAX_P50) -> list[Row]:
    """The median and the maximum of some recoveries."""
    details = f"{len(seconds)} responses"
    return [
        Row(f"{name} (p50)", statistics.median(seconds), "s", Goal(max_p50), details=details),
        Row(f"{name} (max)", max(seconds), "s", Goal(MAX)),
    ]


async def _one_of_three(folder: Path, rounds: int) -> list[Row]:
    seconds: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        [web], workers = await started.start(webs=1, workers=3)
        with Client(web.port, started.key) as client:
            for number in range(rounds):
                await asyncio.sleep(TIE_AGE)
                async with _streams([client], 30) as streams:
                    victim = workers.pop(0)
                    seconds += await _kill(started, streams, [], [victim])
                    await _cancel(client, streams)
                if number < rounds - 1:
                    workers += (await started.start(workers=1))[1]
    return _rows("kill -9 of one of three workers, 30 streams", seconds)


async def _one_survivor(folder: Path, number: int, profiler: Profiler) -> list[Row]:
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        [web], [victim] = await started.start(webs=1, workers=1, streams=1000)
        with Client(web.port, started.key) as client:
            async with _streams([client], number) as streams:
                _, [survivor] = await started.start(workers=1, streams=1000)
                await asyncio.sleep(TIE_AGE)
                with profiler.recording("survivor", {"web": web.pid, "worker": survivor.pid}):
                    seconds = await _kill(started, streams, [], [victim])
    return _rows(f"kill -9 of one of two workers, {number} streams", seconds)


async def _web(folder: Path, rounds: int) -> list[Row]:
    seconds: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        webs, _ = await started.start(webs=2, workers=2)
        for number in range(rounds):
            await asyncio.sleep(TIE_AGE)
            victim = webs.pop(0)
            with Client(victim.port, started.key) as client:
                async with _streams([client], 10, background=False) as streams:
                    seconds += await _kill_web(upstream, streams, victim)
            if number < rounds - 1:
                webs += (await started.start(webs=1))[0]
    return _rows("kill -9 of one of two webs, foreground ended", seconds)


async def _machine(folder: Path, rounds: int) -> list[Row]:
    """Two machines with a web process and two workers each; all processes of one are killed."""
    background: list[float] = []
    foreground: list[float] = []
    async with held_upstream() as upstream, cluster(folder, upstream.url) as started:
        webs, workers = await started.start(webs=2, workers=4)
        for number in range(rounds):
            await asyncio.sleep(TIE_AGE)
            first, second = webs
            with (
                Client(first.port, started.key) as dying,
                Client(second.port, started.key) as staying,
            ):
                async with (
                    _streams([staying], 30) as streams,
                    _streams([dying], 10, background=False) as waiting,
                ):
                    killed_at, owned = await _kill_all(started, streams, [first], workers[:2])
                    background += await _recovery_times(streams, owned, killed_at)
                    foreground += await _ending_times(upstream, waiting, killed_at)
                    await _cancel(staying, streams)
            if number < rounds - 1:
                new_webs, new_workers = await started.start(webs=1, workers=2)
                webs, workers = [second, *new_webs], workers[2:] + new_workers
    return [
        *_rows("kill -9 of half of all processes", background),
        *_rows("the same, foreground ended", foreground),
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


async def _cancel(client: Client, streams: list[Stream]) -> None:
    for stream in streams:
        await client.json("POST", f"/v1/responses/{stream.id}/cancel")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
