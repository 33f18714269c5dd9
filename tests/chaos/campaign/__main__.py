"""`./dev chaos`: faults at random times, and an auditor of the promises. See docs/chaos.md."""

import argparse
import asyncio
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from tests.chaos.abuse.__main__ import main as abuse
from tests.chaos.batch.__main__ import main as batch
from tests.chaos.campaign.campaign import LIMITS, SHORTENED, Campaign
from tests.chaos.campaign.figures import RoundFigures, StateFile
from tests.chaos.campaign.plan import DEFAULT, DENSE, Plan, monkey, plan
from tests.chaos.campaign.round import RoundResult
from tests.chaos.campaign.seeds import SEEDS_FILE, Seed, append_seed, read_seeds
from tests.chaos.campaign.table import CampaignTotals
from tests.chaos.code.__main__ import main as code
from tests.chaos.ingest.__main__ import main as ingest


def main() -> int:
    """Runs the campaign; returns 0 without violations, 1 with some, 2 for bad arguments."""
    others = {"--abuse": abuse, "--batch": batch, "--code": code, "--ingest": ingest}
    for option, other in others.items():
        if option in sys.argv:
            sys.argv.remove(option)
            return other()
    arguments = _arguments()
    options = "defaults" if arguments.defaults else ""
    try:
        state = StateFile(arguments.state, options) if arguments.state else None
    except ValueError as error:
        print(f"./dev chaos: {error}", file=sys.stderr)
        return 2
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="backburner-chaos-failed-"))
    totals = CampaignTotals()
    for figures in state.rounds if state else []:
        totals.add(figures)
    try:
        asyncio.run(_run(arguments, state, totals, keep))
    except asyncio.CancelledError:
        print("interrupted; the round in progress is lost", file=sys.stderr)
    print(totals.to_markdown())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(totals.to_json(), indent=1) + "\n")
    if totals.violations:
        print(
            f"{len(totals.violations)} violations; logs and transcripts of this run are in {keep}",
            file=sys.stderr,
        )
    return 1 if totals.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Run a deployment with random faults and check what its clients saw.",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="stop after so many rounds (default: 20, or no limit with --minutes)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin no round after so many minutes; with --monkey its duration (default: 10)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="append the figures of each finished round to FILE, begin with the seed after those"
        " in it, and add up the whole file",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the first round; the next rounds follow it (default: 1, or as --state says)",
    )
    parser.add_argument(
        "--seeds",
        type=Path,
        metavar="FILE",
        help="run the seeds of this file instead; its format is that of tests/chaos/seeds.txt",
    )
    parser.add_argument(
        "--defaults",
        action="store_true",
        help="default lease times instead of shortened ones; a round takes minutes",
    )
    parser.add_argument(
        "--monkey",
        choices=["postgres"],
        help="instead of rounds: restart PostgreSQL every 5-40 s under load",
    )
    parser.add_argument(
        "--abuse",
        action="store_true",
        help="instead of faults: projects that attack while another one works; it has other"
        " options, which --abuse --help lists",
    )
    parser.add_argument(
        "--batch",
        action="store_true",
        help="instead of rounds: one large batch whose processes are killed, and an interactive"
        " client beside it; it has other options, which --batch --help lists",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="instead of rounds: cells of code, while also sandboxes are killed; it has other"
        " options, which --code --help lists",
    )
    parser.add_argument(
        "--ingest",
        action="store_true",
        help="instead of rounds: files of all kinds that are ingested while processes are killed;"
        " it has other options, which --ingest --help lists",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw values there")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="folder for logs and transcripts of failed rounds",
    )
    parser.add_argument(
        "--failures",
        type=Path,
        metavar="FILE",
        default=SEEDS_FILE,
        help="append the seeds of failed rounds to FILE (default: tests/chaos/seeds.txt)",
    )
    return parser.parse_args()


def _plans(arguments: argparse.Namespace, state: StateFile | None) -> Iterator[Plan]:
    """The plans of the rounds; ends when the rounds or the minutes are over."""
    if arguments.monkey:
        yield monkey(arguments.seed or 1, arguments.minutes or 10)
        return
    end = time.monotonic() + 60 * (arguments.minutes or float("inf"))
    rounds = arguments.rounds or (None if arguments.minutes or arguments.seeds else 20)
    scale = DEFAULT if arguments.defaults else DENSE
    for seed in itertools.islice(_seeds(arguments, state), rounds):
        if time.monotonic() > end:
            return
        yield plan(seed, scale)


def _seeds(arguments: argparse.Namespace, state: StateFile | None) -> Iterator[int]:
    if arguments.seeds is not None:
        options = "defaults" if arguments.defaults else ""
        return (seed.number for seed in read_seeds(arguments.seeds) if seed.options == options)
    following = state.next_seed if state is not None else None
    return itertools.count(arguments.seed or following or 1)


async def _run(
    arguments: argparse.Namespace, state: StateFile | None, totals: CampaignTotals, keep: Path
) -> None:
    """Runs the rounds; adds each to the totals and to the state file when it has ended.

    Raises CancelledError, after everything was stopped, if this process gets SIGINT or SIGTERM.
    """
    this_task = asyncio.current_task()
    assert this_task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, this_task.cancel)
    settings, end_timeout = (
        (LIMITS, 120.0) if arguments.defaults or arguments.monkey else (SHORTENED, 60.0)
    )
    options = "defaults" if arguments.defaults else ""
    results = Campaign(settings, end_timeout, keep).run(_plans(arguments, state))
    async with aclosing(results):
        async for result in results:
            figures = RoundFigures.of(result, options)
            totals.add(figures)
            if state is not None:
                state.append(figures)
            if figures.violations and not arguments.monkey:
                append_seed(arguments.failures, Seed(figures.seed, options), figures.violations[0])
            _print_result(result)
            if figures.violations and not arguments.monkey:
                again = f"--rounds 1 --seed {figures.seed} --keep FOLDER"
                flag = " --defaults" if arguments.defaults else ""
                print(f"    again: ./dev chaos {again}{flag}", file=sys.stderr, flush=True)


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
