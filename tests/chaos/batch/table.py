"""The report on a batch: how long it took, what memory it needed, what the client noticed."""

from collections.abc import Iterator

from tests.chaos.batch.campaign import BatchResult
from tests.support.latencies import percentile
from tests.support.memory_limit import MIB
from tests.support.neighbour import Kind

_KINDS: dict[Kind, str] = {"create": "create", "first_token": "first token", "get": "GET"}


def to_markdown(result: BatchResult) -> str:
    """The whole report."""
    return "\n".join([*_summary(result), "", *_memory(result), "", *_latencies(result)])


def _summary(result: BatchResult) -> Iterator[str]:
    plan, moments = result.plan, result.moments
    total = moments["after the batch"] - moments["validation"]
    faults = ", ".join(f"{count} × {name}" for name, count in sorted(result.faults.items()))
    yield "| | |"
    yield "|---|---|"
    yield f"| requests | {plan.lines} of {plan.endpoint} |"
    yield f"| from the upload to the end | {total:.0f} s: {plan.lines / total:.0f} a second |"
    yield f"| of that until the first one began | {result.validated_after:.1f} s |"
    yield f"| faults (seed {plan.seed}) | {faults or 'none'} |"
    yield f"| tries of webhooks | {result.events} |"


def _memory(result: BatchResult) -> Iterator[str]:
    """The largest memory of each process; of those that were killed, the largest of all."""
    peaks: dict[str, list[int]] = {}
    for process in result.processes:
        if process.peaks:
            name = process.name.partition("-")[0]
            peaks.setdefault(name, []).append(max(process.peaks))
    yield "| process | peak of each, in the order of their starts |"
    yield "|---|---|"
    for name, sizes in sorted(peaks.items()):
        yield f"| {name} | {', '.join(f'{size // MIB}' for size in sizes)} MiB |"


def _latencies(result: BatchResult) -> Iterator[str]:
    yield "| client | request | number | p50 | p99 | max | not answered |"
    yield "|---|---|---|---|---|---|---|"
    for phase in list(result.moments)[:-1]:
        requests = result.requests(phase)
        for kind, name in _KINDS.items():
            seconds = [one.seconds for one in requests if one.kind == kind and one.fault is None]
            if not seconds:
                continue
            shown = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
            times = " | ".join(f"{each * 1000:.0f} ms" for each in shown)
            # A stream that was refused or has broken off is one request, whatever it lacks.
            faulty = "stream" if kind == "first_token" else kind
            faults = sum(one.kind == faulty and one.fault is not None for one in requests)
            yield f"| {phase} | {name} | {len(seconds)} | {times} | {faults} |"
