"""`./dev bench fleet`: what a fleet costs one Postgres and one Redis, idle and at rising load.

The fleet is simulated in one process (bench/fleet_members.py). Its own CPU time is shown, and is no
result: a real fleet has other cores for it. Postgres and Redis are real, and their CPU time is
measured. docs/scaling.md computes its tables from these figures.
"""

import argparse
import asyncio
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import orjson
import psycopg
import uvloop
from redis.asyncio import Redis

from bench.bodies import body
from bench.cpu import CpuMeter
from bench.fleet_counters import count_servers, seconds_until_noticed
from bench.fleet_light import LightProcess
from bench.fleet_members import FleetWorker
from bench.paced_upstream import model
from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from cli.embedded.valkey import Valkey
from models import keys, logs
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.db.queries.api_keys import ApiKey
from models.ids import response_id
from models.redis.client import redis_client
from web.http.body import JsonBody
from web.responses.create import CreateOptions
from web.state import AppState

_STARTED_TOGETHER = 4
_WARM_UP = 6.0
"""Seconds from the start of the last process to the first measurement: ties and pools are old."""
_SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread keeps Python's lock. A process of the fleet has two threads."""
_CONNECTIONS = 20
"""Connections to Postgres besides those of the fleet."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet and its servers."""

    webs: list[AppState]
    workers: list[FleetWorker]
    key: ApiKey
    database: psycopg.AsyncConnection[Any]
    redis: Redis
    addresses: tuple[str, str]
    """of PostgreSQL and Redis"""
    pids: dict[str, int]

    def meter(self) -> CpuMeter:
        """Measures the CPU time of the servers and of the simulation from now on."""
        return CpuMeter({name: [pid] for name, pid in self.pids.items()})

    async def count(self, query: str) -> int:
        """The one number that a query selects."""
        row = await (await self.database.execute(query.encode())).fetchone()
        assert row is not None
        return int(row[0])

    async def count_open(self) -> int:
        """Responses that have not ended."""
        return await self.count(
            "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
        )


@asynccontextmanager
async def _fleet(
    folder: Path, webs: int, workers: int, streams: int, light: int = 0
) -> AsyncIterator[Fleet]:
    password = secrets.token_hex(16)
    connections = 12 * webs + 14 * workers + 3 * light + _CONNECTIONS
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(
            Postgres(
                folder / "postgres",
                folder / "logs",
                port=free_port(),
                password=password,
                max_connections=connections,
            )
        )
        valkey = stack.enter_context(
            Valkey(folder / "valkey", folder / "logs", port=free_port(), password=password)
        )
        migrate(postgres.url)
        keys.bootstrap(postgres.url, keys.new_key())
        database = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(postgres.url, autocommit=True)
        )
        row = await (await database.execute("SELECT id FROM projects")).fetchone()
        assert row is not None
        settings = Settings(
            database_url=postgres.url,
            redis_url=valkey.url,
            upstream=UpstreamSettings(base_url="http://127.0.0.1:1/v1"),
        )
        addresses = (str(postgres.url), str(valkey.url))
        pids = {"Postgres": postgres.pid, "Redis": valkey.pid, "simulation": os.getpid()}
        key = ApiKey(UUID(int=0), row[0], "default", "", b"")
        redis = redis_client(settings, "fleet-counters")
        stack.push_async_callback(redis.aclose)
        fleet = Fleet([], [], key, database, redis, addresses, pids)
        stack.push_async_callback(_stop, fleet)
        await _start(fleet, settings, webs, workers, streams)
        for process in [LightProcess(settings) for _ in range(light)]:
            await process.start()
            stack.push_async_callback(process.stop)
        await asyncio.sleep(_WARM_UP)
        yield fleet


async def _start(fleet: Fleet, settings: Settings, webs: int, workers: int, streams: int) -> None:
    limit = asyncio.Semaphore(_STARTED_TOGETHER)

    async def start_web() -> None:
        async with limit:
            fleet.webs.append(await AppState.open(settings, "127.0.0.1"))

    async def start_worker() -> None:
        worker = FleetWorker(settings, streams)
        async with limit:
            await worker.start()
            fleet.workers.append(worker)

    await asyncio.gather(
        *(start_web() for _ in range(webs)), *(start_worker() for _ in range(workers))
    )


async def _stop(fleet: Fleet) -> None:
    await asyncio.gather(*(worker.stop() for worker in fleet.workers))
    for web in fleet.webs:
        web.begin_shutdown()
    await asyncio.gather(*(web.close() for web in fleet.webs))


@dataclass(frozen=True, slots=True)
class Mix:
    """What clients do with one response."""

    plan: str
    """of the upstream: bench/paced_upstream.py"""
    streamed: float
    """share of the responses that are followed live; the others are polled"""
    poll_interval: float
    """seconds between two polls of one response"""


@dataclass(slots=True)
class Traffic:
    """What clients have seen."""

    create_seconds: list[float] = field(default_factory=list)
    ended: int = 0
    bytes: int = 0
    """of live streams"""


class Clients:
    """The clients of a fleet."""

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        self._fleet = fleet
        self._mix = mix
        self._content = body(mix.plan, background=True)
        self._size = len(orjson.dumps(self._content))
        self.traffic = Traffic()

    async def run(self, rate: float, seconds: float) -> None:
        """Starts `rate` responses a second for so long; returns when all have ended."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as clients:
            for number in range(round(rate * seconds)):
                await asyncio.sleep(start + number / rate - loop.time())
                clients.create_task(self._use_one())

    async def _use_one(self) -> None:
        """Creates a response, and follows or polls it until it ends."""
        web = random.choice(self._fleet.webs)
        started = time.perf_counter()
        accepted = await web.create_response.create(
            self._fleet.key, JsonBody(self._content, self._size), {}, CreateOptions()
        )
        self.traffic.create_seconds.append(time.perf_counter() - started)
        # Another web process serves the next request of the client.
        web = random.choice(self._fleet.webs)
        if random.random() < self._mix.streamed:
            async for frames in web.event_reader.follow(accepted.id, -1, background=True):
                self.traffic.bytes += len(frames)
        else:
            await self._poll(web, response_id(accepted.id))
        self.traffic.ended += 1

    async def _poll(self, web: AppState, public_id: str) -> None:
        while True:
            await asyncio.sleep(self._mix.poll_interval)
            answer = await web.response_store.show(
                self._fleet.key.project_id, public_id, hold=_no_share
            )
            shown = orjson.loads(answer.body)
            if shown["status"] not in ("queued", "in_progress"):
                assert shown["status"] == "completed", shown["error"]
                return


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of each kind of process, and how long was measured."""

    seconds: float
    cpu: dict[str, float]

    def a_second(self) -> dict[str, float]:
        """CPU seconds a second: the share of one core."""
        return {name: used / self.seconds for name, used in self.cpu.items()}

    def beyond(self, idle: "Cost") -> dict[str, float]:
        """CPU seconds beyond those of the idle fleet."""
        usual = idle.a_second()
        return {name: used - usual[name] * self.seconds for name, used in self.cpu.items()}


async def _measure(fleet: Fleet, work: Coroutine[Any, Any, None]) -> Cost:
    meter, started = fleet.meter(), time.monotonic()
    await work
    return Cost(time.monotonic() - started, meter.used())


def _no_share() -> NoReturn:
    raise AssertionError("an output of this upstream is not large")


def main(arguments: list[str]) -> int:
    """Runs the benchmark with these arguments of the command line. Returns 0."""
    options = _parser().parse_args(arguments)
    logs.configure("error", process="fleet")
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with tempfile.TemporaryDirectory(prefix="backburner-fleet-") as folder:
        uvloop.run(_run(Path(folder), options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench fleet",
        description="Measure what a simulated fleet costs one Postgres and one Redis.",
    )
    add = parser.add_argument
    add("--workers", type=int, default=50)
    add("--webs", type=int, default=20)
    add("--slots", type=int, default=1000, help="background responses that a worker runs")
    add("--seconds", type=float, default=20.0, help="of each measurement")
    add("--rates", type=_numbers, default=[25, 50, 100, 200], help="short responses a second")
    add("--deltas", type=int, default=5, help="of a short response, all at once")
    add("--streams", type=_numbers, default=[100, 300], help="steady streams, each with a reader")
    add("--interval", type=float, default=0.1, help="seconds between two deltas of a stream")
    add(
        "--warm-up",
        type=int,
        default=1000,
        help="responses before the first measurement: each session of Postgres prepares "
        "a statement when it is sent for the sixth time",
    )
    add("--light", type=int, default=0, help="processes that do nothing, by their statements alone")
    add("--idle", action="store_true", help="only what processes cost that do nothing")
    add("--streamed", type=float, default=0.5, help="share of short responses that are streamed")
    add("--poll-interval", type=float, default=1.0, help="seconds between two polls of the others")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


async def _run(folder: Path, options: argparse.Namespace) -> None:
    print(f"{options.workers} workers, {options.webs} web processes, {options.light} light ones")
    async with _fleet(folder, options.webs, options.workers, options.slots, options.light) as fleet:
        if options.idle:
            await _idle(fleet, options.seconds)
            return
        mix = Mix(model(options.deltas), options.streamed, options.poll_interval)
        rate = options.rates[-1] / 2
        await Clients(fleet, mix).run(rate, options.warm_up / rate)
        idle = await _idle(fleet, options.seconds)
        for rate in options.rates:
            await _short(fleet, options, mix, rate, idle)
        for streams in options.streams:
            await _steady(fleet, options, streams, idle)


async def _idle(fleet: Fleet, seconds: float) -> Cost:
    before = await count_servers(fleet.database, fleet.redis)
    cost = await _measure(fleet, asyncio.sleep(seconds))
    counts = (await count_servers(fleet.database, fleet.redis)).since(before, seconds)
    deaths = await seconds_until_noticed(fleet.addresses, fleet.database)
    connections = await fleet.count(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    _print(
        "idle",
        f"{counts.transactions:.0f} transactions/s, {counts.flushes:.1f} flushes/s, "
        f"{counts.wal_bytes / 1024:.0f} KiB/s of WAL, {counts.multixacts:.1f} multixacts/s, "
        f"{connections} connections, {counts.commands:.0f} commands/s of Redis; a death is noticed "
        f"after {statistics.median(deaths):.1f} s, {max(deaths):.1f} s at most",
        {name: f"{used * 1000:.1f} ms/s" for name, used in cost.a_second().items()},
    )
    return cost


async def _short(
    fleet: Fleet, options: argparse.Namespace, mix: Mix, rate: int, idle: Cost
) -> None:
    """Short responses at a rate, and what one of them costs."""
    clients = Clients(fleet, mix)
    cost = await _measure(fleet, clients.run(rate, options.seconds))
    traffic = clients.traffic
    used = cost.beyond(idle)
    _print(
        f"{rate} responses/s of {options.deltas} deltas",
        f"create p50 {statistics.median(traffic.create_seconds) * 1000:.1f} ms; "
        f"all {traffic.ended} had ended after {cost.seconds:.1f} s; {_ends(cost)}",
        {name: f"{used[name] / traffic.ended * 1000:.2f} ms" for name in used},
    )


async def _steady(fleet: Fleet, options: argparse.Namespace, streams: int, idle: Cost) -> None:
    """Long streams, each with a reader, and what one delta costs."""
    begun = options.seconds / 2
    deltas = round((options.seconds + begun + 10) / options.interval)
    clients = Clients(fleet, Mix(model(deltas, options.interval), 1.0, 0.0))
    running = asyncio.create_task(clients.run(streams / begun, begun))
    await asyncio.sleep(begun + 3)
    cost = await _measure(fleet, asyncio.sleep(options.seconds))
    await running
    count = streams / options.interval * cost.seconds
    used = cost.beyond(idle)
    _print(
        f"{streams} streams of {1 / options.interval:g} deltas/s",
        f"{streams / options.interval:.0f} deltas/s; {_ends(cost)}",
        {name: f"{used[name] / count * 1e6:.0f} us" for name in used},
    )


def _ends(cost: Cost) -> str:
    """The share of one core that each server uses."""
    shares = (f"{name} {share:.0%}" for name, share in cost.a_second().items())
    return f"of a core: {', '.join(shares)}"


def _print(name: str, details: str, costs: dict[str, str]) -> None:
    split = ", ".join(f"{kind} {cost}" for kind, cost in costs.items())
    print(f"{name}: {split}\n    {details}", flush=True)
