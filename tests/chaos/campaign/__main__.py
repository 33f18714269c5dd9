"""`./dev chaos`: faults at random times, and an auditor of the promises. See docs/chaos.md."""

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign.campaign import LIMITS, SHORTENED, Campaign
from tests.chaos.campaign.plan import DEFAULT, SHORT, Plan, monkey, plan, with_tools
from tests.chaos.campaign.round import RoundResult
from tests.chaos.campaign.table import CampaignTotals
from tests.support.mcp_servers import McpServers
from tests.support.tool_turns import TOOL_SETTINGS


def main() -> int:
    """Runs the campaign; returns 0 without violations, 1 with some, 2 for bad arguments."""
    arguments = _arguments()
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="backburner-chaos-failed-"))
    settings, end_timeout = (
        (LIMITS, 120.0) if arguments.defaults or arguments.monkey else (SHORTENED, 60.0)
    )
    run = _run_with_tools if arguments.tools else _run
    totals = asyncio.run(run(_plans(arguments), Campaign(settings, end_timeout, keep)))
    print(totals.to_markdown())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(totals.to_json(), indent=1) + "\n")
    if totals.violations:
        print(
            f"{len(totals.violations)} violations; logs and transcripts are in {keep}",
            file=sys.stderr,
        )
    return 1 if totals.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Run a deployment with random faults and check what its clients saw.",
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of the first round; the next rounds follow it (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=Path,
        help="run the seeds of this file instead: one a line, then what it showed",
    )
    parser.add_argument(
        "--defaults",
        action="store_true",
        help="default lease times instead of shortened ones; a round takes minutes",
    )
    parser.add_argument(
        "--tools",
        action="store_true",
        help="most responses call tools of a counting MCP server before they answer",
    )
    parser.add_argument(
        "--monkey",
        choices=["postgres"],
        help="instead of rounds: restart PostgreSQL every 5-40 s under load",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="duration of --monkey (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw values there")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="folder for logs and transcripts of failed rounds",
    )
    return parser.parse_args()


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    if arguments.monkey:
        return [monkey(arguments.seed, arguments.minutes)]
    scale = DEFAULT if arguments.defaults else SHORT
    plans = [
        plan(seed, scale)
        for seed in (
            seeds_in(arguments.seeds)
            if arguments.seeds
            else range(arguments.seed, arguments.seed + arguments.rounds)
        )
    ]
    return [with_tools(round_plan) for round_plan in plans] if arguments.tools else plans


def seeds_in(file: Path) -> list[int]:
    """The seeds of a file: the first field of each line that is neither empty nor a comment (#)."""
    lines = (line.split("#", 1)[0].split() for line in file.read_text().splitlines())
    return [int(fields[0]) for fields in lines if fields]


async def _run(plans: list[Plan], campaign: Campaign) -> CampaignTotals:
    totals = CampaignTotals()
    async for result in campaign.run(plans):
        totals.add(result)
        _print_result(result)
    return totals


async def _run_with_tools(plans: list[Plan], campaign: Campaign) -> CampaignTotals:
    async with McpServers() as mcp:
        return await _run(
            plans,
            dataclasses.replace(campaign, mcp=mcp, settings={**campaign.settings, **TOOL_SETTINGS}),
        )


def _print_result(result: RoundResult) -> None:
    """Prints a line for each round to standard error, with all its violations."""
    faults = ", ".join(result.faults.elements()) or "nothing"
    count = len(result.report.violations)
    head = (
        f"seed {result.plan.seed}: {result.report.responses} responses,"
        f" {result.seconds:.1f} s, {faults}: {count or 'no'} violations"
    )
    print(head, *result.report.violations, sep="\n    ", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
