"""`./dev bench`: the speed we promise, as ratios of two measurements of a run, and as times.

docs/benchmarks.md says what each row means.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import uvloop

from bench import chains, footprint, many_streams, one_response, recovery
from bench.figures import Result


class Benchmark(Protocol):
    """Starts a deployment of its own in `folder`, and measures."""

    def __call__(self, folder: Path, *, quick: bool) -> AsyncIterator[Result]: ...


BENCHMARKS: dict[str, Benchmark] = {
    "one-response": one_response.run,
    "many-streams": many_streams.run,
    "footprint": footprint.run,
    "chains": chains.run,
    "recovery": recovery.run,
}
"""The benchmarks by name; each starts its own deployment."""


def main() -> int:
    """Runs the benchmarks. Returns 0 if every figure is within its limit, 1 if one is not."""
    arguments = _arguments()
    results = uvloop.run(_run(arguments.names or list(BENCHMARKS), quick=arguments.quick))
    if arguments.json is not None:
        text = json.dumps([result.to_json() for result in results], indent=1)
        arguments.json.write_text(f"{text}\n")
    return 0 if all(result.is_kept for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Start deployments and measure them, beside a chain without guarantees.",
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
        "--json", type=Path, metavar="FILE", help="also write the results to a file"
    )
    return parser.parse_args()


async def _run(names: list[str], *, quick: bool) -> list[Result]:
    results: list[Result] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="backburner-bench-") as folder:
            async for result in BENCHMARKS[name](Path(folder), quick=quick):
                print(result.to_text(), flush=True)
                results.append(result)
    return results


if __name__ == "__main__":
    sys.exit(main())
