"""`./dev bench`: the speed we promise, as ratios of two measurements of a run, and as times.

docs/benchmarks.md says what each row means.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

import uvloop

from bench import (
    baseline,
    capacity,
    chains,
    code_cells,
    creates,
    fleet,
    footprint,
    many_streams,
    one_response,
    open_responses,
    recovery,
    retrieval,
    scale_out,
    store,
)
from bench.figures import HEADING, PastRow, Row, to_text
from bench.load import FULL, QUICK, Load
from bench.profiling import NoProfiler, NoPySpy, Profiler, PySpy
from bench.runs import Measured, OtherWork, missed_goals, ranges
from bench.soak.__main__ import main as soak


class Benchmark(Protocol):
    """Starts a deployment of its own in `folder`, and measures."""

    def __call__(self, folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]: ...


BENCHMARKS: dict[str, Benchmark] = {
    "one-response": one_response.run,
    "creates": creates.run,
    "many-streams": many_streams.run,
    "footprint": footprint.run,
    "chains": chains.run,
    "recovery": recovery.run,
    "restart": recovery.run_restart,
    "code": code_cells.run,
}
"""The benchmarks by name; each starts its own deployment."""
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "soak": soak,
    "fleet": fleet.main,
    "open": open_responses.main,
    "scale-out": scale_out.main,
    "capacity": capacity.main,
    "retrieval": retrieval.main,
    "store": store.main,
}
"""Benchmarks with options of their own, which a run of all benchmarks leaves out."""
SIZES = (
    "samples",
    "responses",
    "seconds",
    "concurrency",
    "jobs",
    "job_seconds",
    "held_streams",
    "rounds",
)
LISTS = {"streams": "streams", "lag_streams": "lag-streams", "rates": "rate"}
"""Fields of the load that are lists -> their options."""


def main() -> int:
    """Runs the benchmarks. Returns 0 if every goal is met that could be judged, 1 if one is missed,
    2 if the machine was too busy with other work to judge any."""
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        return COMMANDS[sys.argv[1]](sys.argv[2:])
    parser = _parser()
    arguments = parser.parse_args()
    load = _load(arguments)
    if arguments.write_baseline and (
        arguments.names or arguments.profile or load != FULL or arguments.runs > 1
    ):
        parser.error("a baseline is written by one full run: without names, sizes and --profile")
    try:
        profiler = PySpy(arguments.profile) if arguments.profile else NoProfiler()
    except NoPySpy as error:
        parser.error(str(error))
    machine, last = baseline.this_machine(), baseline.read()
    print(f"{machine.to_text()}; load average {os.getloadavg()[0]:.1f}")
    if last is not None:
        print(f"last release: {last.to_text()}")
    print(HEADING, flush=True)
    names = arguments.names or list(BENCHMARKS)
    last_rows = {row.name: row for row in last.rows} if last is not None else {}
    runs = [
        measured
        for _ in range(arguments.runs)
        for measured in uvloop.run(_run(names, load, profiler, last_rows))
    ]
    rows = [row for measured in runs for row in measured.rows]
    if arguments.json is not None:
        text = json.dumps([row.to_json() for row in rows], indent=1)
        arguments.json.write_text(f"{text}\n")
    if arguments.write_baseline:
        baseline.write(rows, machine, " ".join(["./dev bench", *sys.argv[1:]]))
    if arguments.runs > 1:
        print(f"\nOf {arguments.runs} runs:\n{ranges(runs)}")
    missed = missed_goals(runs)
    print(f"{len(rows)} rows, {missed} missed")
    for measured in runs:
        if measured.is_disturbed:
            print(measured.to_text())
    if missed:
        return 1
    return 2 if all(measured.is_disturbed for measured in runs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Start deployments and measure them, beside a chain without guarantees.",
        epilog="With options of their own (--help lists them): soak, hours of mixed load; fleet, "
        "the servers of a simulated fleet; open, many responses that wait; scale-out, two "
        "processes of each kind against one; retrieval, search in a large vector store; store, "
        "statements with millions of stored responses.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[[], *BENCHMARKS],
        metavar="NAME",
        help=f"of: {', '.join(BENCHMARKS)} (default: all)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer samples; the figures are less exact"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=1,
        metavar="N",
        help="so many runs, and the range of each row over those that nothing else disturbed",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the results to a file"
    )
    parser.add_argument(
        "--write-baseline",
        action="store_true",
        help="also make the results those of the last release (bench/baseline.json)",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help="also write stacks and a flame graph of each process and measurement, by py-spy",
    )
    sizes = parser.add_argument_group("sizes of the load, instead of the usual ones")
    for name in SIZES:
        kind = float if name == "seconds" else int
        sizes.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")
    for field, option in LISTS.items():
        sizes.add_argument(f"--{option}", type=_numbers, dest=field, metavar="N,…")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _load(arguments: argparse.Namespace) -> Load:
    """The usual load, with the sizes that were given."""
    load = QUICK if arguments.quick else FULL
    given = {name: getattr(arguments, name) for name in (*SIZES, *LISTS)}
    return dataclasses.replace(
        load, **{name: value for name, value in given.items() if value is not None}
    )


async def _run(
    names: list[str], load: Load, profiler: Profiler, last: Mapping[str, PastRow]
) -> list[Measured]:
    runs: list[Measured] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        started, other_work, rows = time.monotonic(), OtherWork(), list[Row]()
        with tempfile.TemporaryDirectory(prefix="backburner-bench-") as folder:
            async for row in BENCHMARKS[name](Path(folder), load, profiler):
                print(to_text(row, last.get(row.name)), flush=True)
                rows.append(row)
        runs.append(Measured(name, rows, other_work.share()))
        seconds = f"{time.monotonic() - started:.0f} s"
        print(f"{runs[-1].to_text()}; {seconds}", file=sys.stderr, flush=True)
    return runs


if __name__ == "__main__":
    sys.exit(main())
