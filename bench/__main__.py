"""`./dev bench`: the speed that is owed (design §12), as ratios of things measured in the same run."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from bench import chains
from bench.figures import BenchmarkResult
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import SuiteSettings, databases

BENCHMARKS = {"chains": chains.run}
"""Name -> what measures it, on servers of its own."""


def main() -> int:
    """Run what the arguments say. Exit status 0: every ratio is as promised; 1: one is not; 2: the arguments are wrong."""
    told = _arguments()
    figures = asyncio.run(_run(told.names or list(BENCHMARKS), told.quick))
    for figure in figures:
        print(figure.to_text())
    if told.json is not None:
        told.json.write_text(json.dumps([figure.to_json() for figure in figures], indent=1) + "\n")
    return 0 if all(figure.is_kept for figure in figures) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Measure a deployment of its own, against something measured beside it.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[[], *BENCHMARKS],
        metavar="NAME",
        help=f"of: {', '.join(BENCHMARKS)} (default: all)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer samples; the ratios are rougher"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    return parser.parse_args()


async def _run(names: list[str], quick: bool) -> list[BenchmarkResult]:
    figures: list[BenchmarkResult] = []
    surroundings = SuiteSettings(database_url=None, redis_url=None)
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="backburner-bench-") as folder:
            async with (
                FakeUpstream() as fake,
                databases(Path(folder) / "postgres", surroundings) as servers,
            ):
                figures += await BENCHMARKS[name](
                    Path(folder), servers, surroundings, fake, quick=quick
                )
    return figures


if __name__ == "__main__":
    sys.exit(main())
