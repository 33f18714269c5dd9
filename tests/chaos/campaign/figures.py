"""The figures of one round, and the file that keeps them from one campaign to the next."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.chaos.audit.measures import Measures
from tests.chaos.audit.record import ResponseTrace, RunRecord
from tests.chaos.campaign.round import RoundResult


@dataclasses.dataclass(slots=True)
class RoundFigures:
    """What one round adds to the table."""

    seed: int
    options: str
    """The options of the seed, as in tests/chaos/seeds.txt: `defaults` or nothing."""
    responses: int
    """Accepted responses."""
    kinds: dict[str, int]
    """Accepted responses by what is special about them."""
    objects: dict[str, int]
    """Everything that is no response, by kind: what was made, and requests that were answered."""
    faults: dict[str, int]
    upstream_faults: dict[str, int]
    injected: int
    """Statements whose request or reply was lost."""
    violations: list[str]
    tool_calls: int
    repeated: int
    """Safe calls that ran again after a crash."""
    unknown: int
    """Calls whose outcome is unknown to the model."""
    double_faults: int
    """Responses with the stated double fault."""
    double_violations: int
    seconds: float
    starved: float
    """Seconds in which the machine had too little CPU, so that no limit of time was checked."""
    measures: dict[str, list[float]]
    """The fields of `Measures`, in seconds."""

    @classmethod
    def of(cls, result: RoundResult, options: str) -> Self:
        """The figures of a result."""
        report = result.report
        calls = Counter((call.marker, call.key) for call in result.record.tools)
        upstream_faults = Counter[str](client.upstream_fault for client in result.plan.clients)
        del upstream_faults["none"]
        return cls(
            seed=result.plan.seed,
            options=options,
            responses=report.responses,
            kinds=dict(Counter(kind for trace in result.record.traces for kind in _kinds(trace))),
            objects=dict(Counter(_objects(result.record))),
            faults=dict(result.faults),
            upstream_faults=dict(upstream_faults),
            injected=result.injected,
            violations=[str(violation) for violation in report.violations],
            tool_calls=calls.total(),
            repeated=calls.total() - len(calls),
            unknown=sum(item["status"] == "failed" for item in _mcp_calls(result)),
            double_faults=len(report.double_faults),
            double_violations=sum(
                violation.response in report.double_faults for violation in report.violations
            ),
            seconds=round(result.seconds, 1),
            starved=round(
                sum(
                    (fault.end or fault.begin) - fault.begin
                    for fault in result.record.faults
                    if fault.what == "starved"
                ),
                1,
            ),
            measures={
                name: [round(duration, 4) for duration in getattr(report.measures, name)]
                for name in Measures.__slots__
            },
        )


def _kinds(trace: ResponseTrace) -> Iterator[str]:
    """What is special about an accepted response."""
    if trace.create.status != 200:
        return
    if trace.conversation is not None:
        yield "in a conversation"
    if trace.previous is not None:
        yield "continuing a response"
    if trace.kind != "plain" or trace.compacted is not None:
        yield "with a compaction"
    if any(reading.is_socket for reading in trace.readings):
        yield "over a WebSocket"
    if trace.marker.startswith("native-"):
        yield "by a native upstream"


def _objects(record: RunRecord) -> Iterator[str]:
    yield from (trace.kind for trace in record.objects if trace.id is not None)
    yield from (f"{trace.kind} created again" for trace in record.objects if len(trace.creates) > 1)
    yield from ("line of a batch" for batch in record.batches for _ in batch.output)
    yield from ("chunk" for store in record.stores for file in store.files for _ in file.chunks)
    yield from ("search" for store in record.stores for _ in store.searches)
    yield from ("proxied" for one in record.proxied if one.request.status == 200)
    yield from ("webhook" for _ in record.events)


def _mcp_calls(result: RoundResult) -> Iterator[dict[str, Any]]:
    """The tool calls in the outputs that GETs returned last."""
    for trace in result.record.traces:
        states = [request.body for request in trace.requests_of("get") if request.status == 200]
        yield from (
            item for item in (states[-1]["output"] if states else []) if item["type"] == "mcp_call"
        )


class StateFile:
    """A file of JSON lines, one for each finished round. It is only appended to."""

    def __init__(self, path: Path, options: str) -> None:
        """`options`: those of the rounds that are added. Raises ValueError if it has others."""
        self._path = path
        self.rounds = list(self._read()) if path.exists() else []
        others = {figures.options for figures in self.rounds} - {options}
        if others:
            raise ValueError(f"{path} has rounds with other options: {others.pop() or 'none'}")

    @property
    def next_seed(self) -> int | None:
        """The seed after the highest one in the file; None if the file has no round."""
        return max((figures.seed + 1 for figures in self.rounds), default=None)

    def append(self, figures: RoundFigures) -> None:
        """Adds a round; after the return it survives every crash."""
        line = json.dumps(dataclasses.asdict(figures), separators=(",", ":")) + "\n"
        with self._path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.rounds.append(figures)

    def _read(self) -> Iterator[RoundFigures]:
        """The rounds of the file. A last line that was not written completely is removed."""
        complete, newline, rest = self._path.read_text().rpartition("\n")
        if rest:
            with self._path.open("r+") as file:
                file.truncate(len((complete + newline).encode()))
        for line in complete.splitlines():
            yield RoundFigures(**json.loads(line))
