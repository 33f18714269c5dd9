"""`./dev chaos --batch`: a large batch, while processes are killed. See docs/chaos.md."""

import argparse
import asyncio
import sys

from features.batches.lines import ENDPOINTS
from tests.chaos.batch.campaign import BatchPlan, run_batch
from tests.chaos.batch.table import to_markdown


def main() -> int:
    """Runs the batch; returns 0 if each request has one result and each event was delivered."""
    arguments = _arguments()
    plan = BatchPlan(
        lines=arguments.lines,
        endpoint=arguments.endpoint,
        seed=arguments.seed,
        pause=arguments.pause,
        calm=arguments.calm,
    )
    result = asyncio.run(run_batch(plan))
    print(to_markdown(result))
    violations = result.violations
    print(*violations, f"{len(violations)} violations", sep="\n", file=sys.stderr)
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos --batch",
        description="Run a batch while web and worker processes are killed and PostgreSQL restarts"
        " twice; measure an interactive client beside it.",
    )
    parser.add_argument("--lines", type=int, default=2000, help="requests (default: 2000)")
    parser.add_argument("--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0])
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: 1)")
    parser.add_argument(
        "--pause",
        type=float,
        default=8,
        help="seconds between two kills, on average; 0: no faults at all (default: 8)",
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=15,
        help="seconds for which the client is measured before the batch, and as long while it runs"
        " before the first fault (default: 15)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
