"""The table of a campaign: each attack, its answers, its cost, and what the neighbour noticed."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.chaos.abuse.campaign import AbuseResult, AttackRun
from tests.support.latencies import Latencies, percentile
from tests.support.memory_limit import MIB


def to_markdown(result: AbuseResult) -> str:
    """The whole table, and a line about the idle server."""
    idle = result.attacked.idle
    every = result.attacked.latencies(result.measurements, result.began, result.until)
    rows = [
        "| attack | runs | answers | web | worker | neighbour p50 | p99 | p99 less CPU waits |",
        "|---|---|---|---|---|---|---|---|",
        f"| idle | | | | | {_of(idle)} |",
        *_rows(result),
        f"| all | {len(result.runs)} | | {_peaks(result, result.runs)} | {_of(every)} |",
    ]
    return "\n".join(rows)


def _rows(result: AbuseResult) -> Iterator[str]:
    names = dict.fromkeys(run.kind.name for run in result.runs)
    for name in names:
        runs = [run for run in result.runs if run.kind.name == name]
        answers: Counter[str] = sum((run.answers for run in runs), Counter())
        shown = ", ".join(f"{answer} × {count}" for answer, count in answers.most_common())
        cost = _peaks(result, runs)
        yield f"| {name} | {len(runs)} | {shown} | {cost} | {_of(result.during(runs))} |"


def _peaks(result: AbuseResult, runs: Sequence[AttackRun]) -> str:
    """The largest memory of a web process and of a worker in the times of these attacks."""
    found = {"web": 0, "worker": 0}
    for run in runs:
        for process, size in result.attacked.peaks(run.began, run.ended).items():
            kind = "web" if process.startswith("web") else "worker"
            found[kind] = max(found[kind], size)
    return " | ".join(f"{size // MIB} MiB" for size in found.values())


def _of(latencies: Latencies) -> str:
    measured = [one.measured for one in latencies.requests]
    shown = [percentile(measured, 0.5), percentile(measured, 0.99), latencies.percentile(0.99)]
    return " | ".join(f"{seconds * 1000:.0f} ms" for seconds in shown)
