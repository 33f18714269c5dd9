"""`./dev chaos`: faults at random moments, and an auditor who finds nothing. See docs/chaos.md."""

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
    """Run what the arguments say. Exit status 0: no violation; 1: some; 2: the arguments are wrong."""
    told = _arguments()
    keep = told.keep or Path(tempfile.mkdtemp(prefix="backburner-chaos-failed-"))
    settings, patience = (LIMITS, 120.0) if told.defaults or told.monkey else (SHORTENED, 60.0)
    run = _run_with_tools if told.tools else _run
    figures = asyncio.run(run(_plans(told), Campaign(settings, patience, keep)))
    print(figures.to_markdown())
    if told.json is not None:
        told.json.write_text(json.dumps(figures.to_json(), indent=1) + "\n")
    if figures.violations:
        print(
            f"{len(figures.violations)} violations; logs and transcripts are in {keep}",
            file=sys.stderr,
        )
    return 1 if figures.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Ill-treat a deployment of its own and check what its clients saw.",
    )
    parser.add_argument("--rounds", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of the first round; the next ones follow (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=Path,
        help="replay the seeds in this file instead: one a line, then what it found",
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
        help="instead of rounds: restart Postgres every 5-40 s under load",
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="of the monkey (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where logs and transcripts of failed rounds go"
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
    return [with_tools(one) for one in plans] if arguments.tools else plans


def seeds_in(file: Path) -> list[int]:
    """The seeds of a file: the first word of each line that is neither empty nor a comment (#)."""
    lines = (line.split("#", 1)[0].split() for line in file.read_text().splitlines())
    return [int(words[0]) for words in lines if words]


async def _run(plans: list[Plan], campaign: Campaign) -> CampaignTotals:
    figures = CampaignTotals()
    async for outcome in campaign.run(plans):
        figures.add(outcome)
        _print_result(outcome)
    return figures


async def _run_with_tools(plans: list[Plan], campaign: Campaign) -> CampaignTotals:
    async with McpServers() as mcp:
        return await _run(
            plans,
            dataclasses.replace(campaign, mcp=mcp, settings={**campaign.settings, **TOOL_SETTINGS}),
        )


def _print_result(result: RoundResult) -> None:
    """A line for each round on standard error; what failed in full."""
    deeds = ", ".join(result.faults.elements()) or "nothing"
    found = len(result.report.violations)
    head = f"seed {result.plan.seed}: {result.report.responses} responses, {result.seconds:.1f} s, {deeds}: {found or 'no'} violations"
    print(head, *result.report.violations, sep="\n    ", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
