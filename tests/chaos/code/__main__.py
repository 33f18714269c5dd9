"""`./dev chaos --code`: cells of code, while what runs them is killed. See docs/chaos.md."""

import argparse
import asyncio
import sys

from tests.chaos.code.campaign import CodePlan, run_code


def main() -> int:
    """Runs the plan; returns 0 if no cell ran twice and no result was lost."""
    plan = _plan()
    result = asyncio.run(run_code(plan))
    faults = ", ".join(f"{count} × {name}" for name, count in sorted(result.faults.items()))
    ends = ", ".join(f"{count} {status}" for status, count in sorted(result.calls.items()))
    print(f"{plan.responses} responses in {result.seconds:.0f} s; calls: {ends}")
    print(f"faults (seed {plan.seed}): {faults or 'none'}")
    print(*result.violations, f"{len(result.violations)} violations", sep="\n", file=sys.stderr)
    return 1 if result.violations else 0


def _plan() -> CodePlan:
    plan = CodePlan()
    parser = argparse.ArgumentParser(
        prog="./dev chaos --code",
        description="Run code while workers, web processes, sandboxes and PostgreSQL are killed.",
    )
    parser.add_argument(
        "--responses",
        type=int,
        default=plan.responses,
        help=f"each with four cells (default: {plan.responses})",
    )
    parser.add_argument(
        "--seed", type=int, default=plan.seed, help=f"of the faults (default: {plan.seed})"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=plan.pause,
        help="seconds between two kills, on average; 0: no faults at all"
        f" (default: {plan.pause:g})",
    )
    given = parser.parse_args()
    return CodePlan(responses=given.responses, seed=given.seed, pause=given.pause)


if __name__ == "__main__":
    sys.exit(main())
