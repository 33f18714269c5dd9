"""`./dev bench scale-out`: two web processes and two workers against one and one.

On a machine with few cores the rate cannot double: there the CPU time of a response shows whether
processes disturb each other.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import uvloop

from bench.bodies import body
from bench.cpu import CpuMeter
from bench.deployment import cluster
from bench.http_client import Client
from bench.paced_upstream import model
from bench.rates import Request, repeat
from bench.system import Module, until_ready

_COUNT_OPEN = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
_WARM_UP = 200


@dataclass(frozen=True, slots=True)
class Throughput:
    """Short background responses that were created and have ended."""

    rate: float
    """a second"""
    cpu: dict[str, float]
    """CPU seconds by kind of process, of all responses"""
    responses: int

    def to_text(self) -> str:
        """The rate, and the CPU time of one response."""
        costs = {name: seconds / self.responses * 1000 for name, seconds in self.cpu.items()}
        split = ", ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
        return f"{self.rate:.0f}/s, {sum(costs.values()):.2f} ms of CPU: {split}"


async def _measure(
    folder: Path, upstream: Module, processes: int, options: argparse.Namespace
) -> Throughput:
    async with cluster(folder, f"{upstream.url}/v1") as started:
        webs, workers = await started.start(webs=processes, workers=processes, streams=1000)
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(web.port, started.key)) for web in webs]
            create = _creator(clients, options.deltas)
            await _run(started.dsn, create, _WARM_UP, options.concurrency)
            meter = CpuMeter(
                {
                    "web": [web.pid for web in webs],
                    "worker": [worker.pid for worker in workers],
                    "Postgres": [started.postgres.pid],
                    "Redis": [started.valkey.pid],
                }
            )
            began = time.monotonic()
            await _run(started.dsn, create, options.responses, options.concurrency)
            seconds = time.monotonic() - began
            return Throughput(options.responses / seconds, meter.used(), options.responses)


def _creator(clients: list[Client], deltas: int) -> Request:
    """A function that creates a response, at each of these web processes in turn."""
    content = body(model(deltas), background=True)
    turns = itertools.cycle(
        [(client, client.encode("POST", "/v1/responses", content)) for client in clients]
    )

    async def create() -> None:
        client, request = next(turns)
        await client.call(request)

    return create


async def _run(dsn: str, create: Request, count: int, concurrency: int) -> None:
    """Creates so many responses; returns when all have ended."""
    await repeat(create, count, concurrency)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while True:
            row = await (await connection.execute(_COUNT_OPEN)).fetchone()
            if row == (0,):
                return
            await asyncio.sleep(0.02)


async def _compare(options: argparse.Namespace) -> None:
    for processes in options.processes:
        with (
            tempfile.TemporaryDirectory(prefix="backburner-scale-") as folder,
            Module("bench.paced_upstream", Path(folder)) as upstream,
        ):
            await until_ready(upstream)
            measured = await _measure(Path(folder), upstream, processes, options)
        print(f"{processes} web and {processes} worker: {measured.to_text()}", flush=True)


def main(arguments: list[str]) -> int:
    """Runs the benchmark with these arguments of the command line. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="./dev bench scale-out", description="Compare deployments of different sizes."
    )
    parser.add_argument(
        "--processes",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[1, 2],
        help="web processes, and as many workers, of each deployment (default 1,2)",
    )
    parser.add_argument("--responses", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--deltas", type=int, default=5)
    uvloop.run(_compare(parser.parse_args(arguments)))
    return 0
