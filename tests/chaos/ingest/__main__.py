"""`./dev chaos --ingest`: files of all kinds, while processes are killed. See docs/chaos.md."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

from tests.chaos.ingest.campaign import IngestPlan, IngestResult, run_ingest


def main() -> int:
    """Runs the ingest; returns 0 if each file has ended as it must, with each chunk once."""
    arguments = _arguments()
    plan = IngestPlan(files=arguments.files, seed=arguments.seed, pause=arguments.pause)
    result = asyncio.run(run_ingest(plan))
    print(*_table(result), sep="\n")
    violations = result.violations
    print(*violations, f"{len(violations)} violations", sep="\n", file=sys.stderr)
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    plan = IngestPlan()
    parser = argparse.ArgumentParser(
        prog="./dev chaos --ingest",
        description="Ingest files of all kinds, some of them hostile, while web and worker"
        " processes are killed and PostgreSQL restarts twice.",
    )
    parser.add_argument(
        "--files", type=int, default=plan.files, help=f"at most 2000 (default: {plan.files})"
    )
    parser.add_argument(
        "--seed", type=int, default=plan.seed, help=f"of files and faults (default: {plan.seed})"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=plan.pause,
        help="seconds between two kills, on average; 0: no faults at all"
        f" (default: {plan.pause:g})",
    )
    return parser.parse_args()


def _table(result: IngestResult) -> Iterator[str]:
    plan, faults = result.plan, sorted(result.faults.items())
    yield "| | |"
    yield "|---|---|"
    for (kind, status), count in sorted(result.kinds.items()):
        yield f"| {kind}: {status} | {count} |"
    yield f"| chunks | {result.chunks} |"
    yield f"| texts that were embedded | {result.embedded} |"
    yield f"| time | {result.seconds:.0f} s: {result.chunks / result.seconds:.0f} chunks a second |"
    shown = ", ".join(f"{count} × {name}" for name, count in faults)
    yield f"| faults (seed {plan.seed}) | {shown or 'none'} |"


if __name__ == "__main__":
    sys.exit(main())
