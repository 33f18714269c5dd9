"""`./dev bench open`: many open background responses that wait for slow upstreams.

It shows what they cost while nothing happens: memory of each process, CPU time a second, and the
time of the statements that run in the background.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import uvloop

from bench.bodies import body
from bench.cpu import CpuMeter, descendants, proportional_bytes
from bench.deployment import cluster
from bench.http_client import Client
from bench.paced_upstream import model
from bench.rates import repeat
from bench.system import Module, until_ready
from models.db.queries import leases, operations, sweep
from models.db.statement import Query, column

_COUNT_RUNNING = "SELECT count(*) FROM responses WHERE status = 'in_progress'"
_WARM_UP = 100
_KIB = 1024
_SWEEP = {
    "waiting": timedelta(seconds=5),
    "interval": timedelta(seconds=5),
    "lease": timedelta(seconds=10),
    "max_rows": 250,
    "quarantine": False,
    "in_line": True,
    "background": True,
    "look": leases.Look.ALL.value,
    "interactive": True,
}
_WATCHED = column(f"SELECT {leases.WATCHED} AS watched", list)
_STATEMENTS: Mapping[str, Query[Any]] = {
    "sweep: orphans": sweep.ORPHANS,
    "sweep: orphans to end": sweep.ORPHANS_TO_END,
    "sweep: enqueue again": sweep.REENQUEUE,
    "heartbeat: what a worker owns": leases.OWNED_RESPONSES,
    "watch: all processes": _WATCHED,
    "metrics: backlog": operations.GAUGES,
}
"""What runs in the background, and one statement of each scrape."""


async def _run(folder: Path, options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(Module("bench.paced_upstream", folder))
        async with cluster(folder, f"{upstream.url}/v1") as started:
            await until_ready(upstream)
            streams = -(-options.responses // options.workers) + _WARM_UP
            webs, workers = await started.start(webs=1, workers=options.workers, streams=streams)
            client = stack.enter_context(Client(webs[0].port, started.key))
            pids = {
                "web": [webs[0].pid],
                "workers": [worker.pid for worker in workers],
                "Postgres": [started.postgres.pid],
                "Redis": [started.valkey.pid],
            }
            async with await psycopg.AsyncConnection.connect(
                started.dsn, autocommit=True
            ) as database:
                await _open(client, database, _WARM_UP, options)
                before = _memory(pids)
                began = time.monotonic()
                await _open(client, database, options.responses, options)
                seconds = time.monotonic() - began
                count = options.responses - _WARM_UP
                print(f"{options.responses} open responses; {count / seconds:.0f} began a second")
                _report_memory(before, _memory(pids), count)
                await _report_idle(pids, options.seconds)
                await _report_statements(database)


async def _open(
    client: Client,
    database: psycopg.AsyncConnection[Any],
    total: int,
    options: argparse.Namespace,
) -> None:
    """Creates responses until so many run."""
    plan = body(model(1, 0, options.wait), background=True)
    request = client.encode("POST", "/v1/responses", plan)

    async def create() -> None:
        await client.call(request)

    await repeat(create, total - await _count(database), options.concurrency)
    async with asyncio.timeout(600):
        while await _count(database) < total:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _count(database: psycopg.AsyncConnection[Any]) -> int:
    row = await (await database.execute(_COUNT_RUNNING)).fetchone()
    assert row is not None
    return int(row[0])


def _memory(pids: Mapping[str, list[int]]) -> dict[str, int]:
    """Bytes by kind of process; pages that processes share are counted once."""
    return {
        name: sum(proportional_bytes(each) for pid in of_kind for each in descendants(pid))
        for name, of_kind in pids.items()
    }


def _report_memory(before: Mapping[str, int], after: Mapping[str, int], responses: int) -> None:
    for name, size in after.items():
        growth = (size - before[name]) / responses / _KIB
        print(f"memory of {name}: {size / _KIB**2:.0f} MiB, {growth:.1f} KiB a response")


async def _report_idle(pids: Mapping[str, list[int]], seconds: float) -> None:
    meter = CpuMeter(pids)
    await asyncio.sleep(seconds)
    costs = {name: used / seconds * 1000 for name, used in meter.used().items()}
    print(
        "CPU while they wait: " + ", ".join(f"{name} {ms:.1f} ms/s" for name, ms in costs.items())
    )


async def _report_statements(database: psycopg.AsyncConnection[Any]) -> None:
    row = await (
        await database.execute("SELECT worker FROM responses WHERE worker IS NOT NULL LIMIT 1")
    ).fetchone()
    assert row is not None
    values: dict[str, object] = {**_SWEEP, "me": row[0]}
    for name, query in _STATEMENTS.items():
        async with database.transaction(force_rollback=True):
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.sql}"
            plan = await (await database.execute(explain.encode(), values)).fetchone()
        assert plan is not None
        [explained] = plan[0]
        pages = explained["Plan"]["Shared Hit Blocks"] + explained["Plan"]["Shared Read Blocks"]
        print(f"{name}: {explained['Execution Time']:.2f} ms, {pages} pages")


def main(arguments: list[str]) -> int:
    """Runs the benchmark with these arguments of the command line. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="./dev bench open",
        description="Measure what open background responses cost while their upstreams are slow.",
    )
    parser.add_argument("--responses", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the wait that is measured")
    parser.add_argument("--wait", type=float, default=550.0, help="seconds until the first token")
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="backburner-open-") as folder:
        uvloop.run(_run(Path(folder), options))
    return 0
