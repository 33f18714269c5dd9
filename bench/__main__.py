"""`./dev bench`: the speed we promise, as ratios of two measurements of the same run."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from bench import chains
from bench.figures import BenchmarkResult

BENCHMARKS = {"chains": chains.run}
"""The benchmarks by name; each starts its own deployment."""


def main() -> int:
    """Runs the benchmarks. Returns 0 if every ratio is within its limit, 1 if one is not."""
    arguments = _arguments()
    results = asyncio.run(_run(arguments.names or list(BENCHMARKS), quick=arguments.quick))
    for result in results:
        print(result.to_text())
    if arguments.json is not None:
        text = json.dumps([result.to_json() for result in results], indent=1)
        arguments.json.write_text(f"{text}\n")
    return 0 if all(result.is_kept for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Start a deployment and measure ratios in it.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[[], *BENCHMARKS],
        metavar="NAME",
        help=f"of: {', '.join(BENCHMARKS)} (default: all)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer samples; the ratios are less exact"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the results to a file"
    )
    return parser.parse_args()


async def _run(names: list[str], *, quick: bool) -> list[BenchmarkResult]:
    results: list[BenchmarkResult] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="backburner-bench-") as folder:
            results += await BENCHMARKS[name](Path(folder), quick=quick)
    return results


if __name__ == "__main__":
    sys.exit(main())
