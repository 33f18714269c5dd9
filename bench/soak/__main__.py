"""`./dev bench soak`: mixed load, and whether memory is flat and tables stop growing."""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.deployment import cluster
from bench.http_client import Client
from bench.soak.mixed_load import ACTIONS, MIX, MixedLoad
from bench.soak.samples import MIB, Sampler
from bench.soak.trend import Trend
from bench.system import Module, until_ready

MEMORY_TOLERANCE = 2.0
"""MiB by which a process may grow after the warm-up."""
TABLE_TOLERANCE = 1.0
"""MiB by which a table may grow after the warm-up, or a tenth of its size."""

KEPT_FOR_DAYS = frozenset({"audit", "usage_entries"})
"""Tables whose rows are kept for longer than a soak takes: they grow with the load, by design
(docs/operations.md, `worker.usage_entries`)."""
PURGE_INTERVAL = 5
_SAMPLES = 360
_SHORTEST_INTERVAL = 1.0


def main(arguments: list[str]) -> int:
    """Runs a soak. Returns 0 if nothing grows and every action succeeded, else 1."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="backburner-soak-") as folder:
        load, sampler = uvloop.run(_soak(Path(folder), options))
    problems = list(_report(load, sampler))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if options.json is not None:
        series = {"memory": sampler.memory, "tables": sampler.tables}
        options.json.write_text(json.dumps(series) + "\n")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench soak",
        description="Run mixed load, and fail if memory or tables grow.",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    parser.add_argument(
        "--rate", type=float, default=15.0, help="actions started a second (default: 15)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=200, help="most actions at a time (default: 200)"
    )
    parser.add_argument("--webs", type=int, default=1, help="web processes (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="workers (default: 2)")
    parser.add_argument(
        "--retention",
        type=float,
        metavar="SECONDS",
        help="of each response (default: a twelfth of the time, at most two minutes)",
    )
    parser.add_argument(
        "--mix",
        type=_mix,
        default=MIX,
        metavar="ACTION=WEIGHT,…",
        help=f"how often each action is drawn; of: {', '.join(ACTIONS)}",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of actions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples")
    return parser


def _mix(text: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        if name not in ACTIONS or not weight.isdigit():
            raise argparse.ArgumentTypeError(f"`{part}` is not an action and its weight")
        weights[name] = int(weight)
    return weights


async def _soak(folder: Path, options: argparse.Namespace) -> tuple[MixedLoad, Sampler]:
    seconds = options.minutes * 60
    retention = options.retention or min(seconds / 12, 120.0)
    settings = {
        "BACKBURNER_RETENTION": f"{retention:g}",
        "BACKBURNER_WORKER__PURGE_INTERVAL": str(PURGE_INTERVAL),
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.1",
        "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32),
    }
    logs = folder / "logs"
    with ExitStack() as stack:
        upstream = stack.enter_context(Module("bench.paced_upstream", logs))
        tools = stack.enter_context(Module("bench.tool_server", logs))
        async with cluster(folder, f"{upstream.url}/v1", settings) as started:
            webs, workers = await started.start(webs=options.webs, workers=options.workers)
            await until_ready(upstream, tools)
            clients = [stack.enter_context(Client(web.port, started.key)) for web in webs]
            pids = {process.name: process.pid for process in [*webs, *workers]}
            servers = {"PostgreSQL": started.postgres.pid, "Valkey": started.valkey.pid}
            sampler = await Sampler.connect(started.dsn, pids | servers)
            load = MixedLoad(clients, options.mix, f"{tools.url}/mcp", options.seed)
            interval = max(seconds / _SAMPLES, _SHORTEST_INTERVAL)
            sampling = asyncio.create_task(sampler.run(interval))
            running = asyncio.create_task(load.run(seconds, options.rate, options.concurrency))
            # a sampler that fails ends the soak
            await asyncio.wait((sampling, running), return_when=asyncio.FIRST_COMPLETED)
            if sampling.done():
                running.cancel()
                sampling.result()
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await running
            await sampler.close()
    return load, sampler


def _report(load: MixedLoad, sampler: Sampler) -> Iterator[str]:
    """Prints the figures. Yields a sentence for each problem."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(load.done.items()))
    print(f"actions: {counts}; failed: {len(load.failures)}; not started: {load.skipped}")
    for failure, count in Counter(load.failures).most_common(10):
        yield f"{count} times: {failure}"
    yield from _report_memory(sampler)
    yield from _report_tables(sampler)


def _report_memory(sampler: Sampler) -> Iterator[str]:
    print(f"\n{'memory':20} {'first':>10} {'last':>10} {'slope':>14} {'residual':>12}")
    for name, series in sampler.memory.items():
        trend = Trend.of(series)
        print(
            f"{name:20} {series[0][1]:6.1f} MiB {trend.last:6.1f} MiB "
            f"{trend.per_hour:+8.1f} MiB/h {trend.residual:8.2f} MiB"
        )
        is_ours = name.startswith(("web", "worker"))
        if is_ours and trend.grows(MEMORY_TOLERANCE):
            yield f"{name} grows by {trend.per_hour:.1f} MiB an hour"


def _report_tables(sampler: Sampler) -> Iterator[str]:
    print(
        f"\n{'table':20} {'size':>10} {'slope':>14} {'live':>9} {'dead':>9} {'most dead':>10} "
        f"{'autovacuums':>12}"
    )
    for name, series in sampler.tables.items():
        trend, table = Trend.of(series), sampler.last[name]
        print(
            f"{name:20} {table.bytes / MIB:6.1f} MiB {trend.per_hour:+8.1f} MiB/h {table.live:9} "
            f"{table.dead:9} {sampler.most_dead[name]:10} {table.autovacuums:12}"
        )
        if name not in KEPT_FOR_DAYS and trend.grows(max(TABLE_TOLERANCE, trend.mean / 10)):
            yield f"table {name} grows by {trend.per_hour:.1f} MiB an hour"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
