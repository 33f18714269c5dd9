"""`./dev chaos --abuse`: attacks of several projects while another one works. See docs/chaos.md."""

import argparse
import asyncio
import os
import sys

from tests.chaos.abuse.attacks import ATTACKS
from tests.chaos.abuse.campaign import AbusePlan, open_deployment, run_abuse
from tests.chaos.abuse.table import to_markdown


def main() -> int:
    """Runs the campaign; returns 0 if the promise was kept, otherwise 1."""
    arguments = _arguments()
    kinds = [
        kind
        for kind in ATTACKS
        if not arguments.only or any(part in kind.name for part in arguments.only)
    ]
    plan = AbusePlan(arguments.minutes, arguments.offenders, kinds, arguments.seed)
    return asyncio.run(_run(plan))


async def _run(plan: AbusePlan) -> int:
    async with open_deployment() as (attacked, servers):
        # Offenders have machines of their own; here they get the time that is left. On Linux this
        # is true for the calling thread alone, and not for the processes of the deployment.
        os.nice(10)
        result = await run_abuse(plan, attacked, servers)
    print(to_markdown(result))
    violations = result.violations()
    print(*violations, f"{len(violations)} violations", sep="\n", file=sys.stderr)
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos --abuse",
        description="Attack a deployment from several projects while another project works.",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="begin no attack after so many minutes; each begins at least once, smaller in less"
        " than 5 minutes (default: 10)",
    )
    parser.add_argument(
        "--offenders",
        type=int,
        default=3,
        help="projects that attack at the same time; 1: one attack at a time (default: 3)",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="only attacks whose name contains TEXT; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
