"""`./dev bench capacity`: the tables of docs/scaling.md, computed from the inputs at its top.

The page has two lists of inputs, `- `name`: value meaning`. With `--write`
the computed table in the page is replaced.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cli import ROOT

PAGE = ROOT / "docs" / "scaling.md"
SIZES = (100, 1_000, 10_000, 100_000)
"""Concurrent responses."""
_INPUT = re.compile(r"^- `(\w+)`: ([\d.]+),? ", re.MULTILINE)
_COMPUTED = re.compile(r"(?<=<!-- computed -->\n).*?(?=<!-- end -->)", re.DOTALL)
_DAY = 86_400
_GIB, _MIB, _KIB = 2**30, 2**20, 2**10

Inputs = Mapping[str, float]


def inputs_of(page: str) -> Inputs:
    """The inputs by name."""
    return {name: float(value) for name, value in _INPUT.findall(page)}


class Demand:
    """What `responses` concurrent responses need; the formulas of the page. Cores at full use."""

    def __init__(self, inputs: Inputs, responses: int) -> None:
        self.responses = responses
        self.rate = responses / inputs["duration"]
        """responses that begin and end each second"""
        self.deltas = responses * inputs["delta_rate"]
        """a second"""
        self._inputs = inputs
        self.worker_cores = self._cpu("worker")
        self.web_cores = self._cpu("web")
        self.workers = max(2, self._processes(self.worker_cores), math.ceil(responses / 1000))
        self.webs = max(2, self._processes(self.web_cores))
        gap = inputs["journal_gap"]
        gap /= max(0.2, 1 - self.deltas * gap / 16 / self.workers)  # worker/log/batch_writer.py
        self.batches = min(self.deltas, self.workers / gap)
        """a second, of all journals"""

    def _cpu(self, process: str) -> float:
        milliseconds = self.rate * self._inputs[f"{process}_response"]
        microseconds = self.deltas * self._inputs[f"{process}_delta"]
        return milliseconds / 1e3 + microseconds / 1e6

    def _processes(self, cores: float) -> int:
        return math.ceil(cores / self._inputs["utilisation"])

    def server_cores(self, server: str) -> float:
        """Cores of `postgres` or `redis`, the idle cost of the processes included."""
        inputs = self._inputs
        milliseconds = self.rate * inputs[f"{server}_response"]
        milliseconds += (self.workers + self.webs) * inputs[f"{server}_process"]
        microseconds = self.batches * inputs[f"{server}_batch"]
        microseconds += self.deltas * inputs[f"{server}_delta"]
        return milliseconds / 1e3 + microseconds / 1e6

    @property
    def connections(self) -> int:
        """To Postgres, with one quarantine worker."""
        return 13 * (self.workers + 1) + 12 * self.webs

    def memory(self, process: str, processes: int) -> float:
        """Bytes of all processes of this kind."""
        inputs = self._inputs
        base = processes * inputs[f"{process}_memory"] * _MIB
        return base + self.responses * inputs[f"{process}_stream"] * _KIB

    @property
    def stored_a_day(self) -> float:
        """Bytes that the tables grow by, without indexes."""
        inputs = self._inputs
        deltas = inputs["duration"] * inputs["delta_rate"]
        size = inputs["stored_response"] * _KIB + deltas * inputs["stored_delta"]
        return self.rate * _DAY * size

    @property
    def journal_rate(self) -> float:
        """Bytes a second that are written to the journal, and deleted again."""
        return self.deltas * self._inputs["stored_delta"]


_ROWS: dict[str, Callable[[Demand], str]] = {
    "responses/s": lambda demand: _number(demand.rate),
    "deltas/s": lambda demand: _number(demand.deltas),
    "worker cores": lambda demand: _number(demand.worker_cores),
    "**workers**": lambda demand: f"**{demand.workers}**",
    "web cores": lambda demand: _number(demand.web_cores),
    "**web processes**": lambda demand: f"**{demand.webs}**",
    "**PostgreSQL cores**": lambda demand: f"**{_number(demand.server_cores('postgres'))}**",
    "**Redis cores**": lambda demand: f"**{_number(demand.server_cores('redis'))}**",
    "connections to PostgreSQL": lambda demand: str(demand.connections),
    "memory of the workers": lambda demand: _gib(demand.memory("worker", demand.workers)),
    "memory of the web processes": lambda demand: _gib(demand.memory("web", demand.webs)),
    "tables, growth a day": lambda demand: _gib(demand.stored_a_day),
    "journal, written": lambda demand: f"{_number(demand.journal_rate / _MIB)} MiB/s",
}


def table(inputs: Inputs) -> str:
    """The computed table as Markdown."""
    demands = [Demand(inputs, size) for size in SIZES]
    heads = " | ".join(f"{size:,}".replace(",", " ") for size in SIZES)
    lines = [f"| concurrent responses | {heads} |", "|---|" + "---|" * len(SIZES)]
    for name, cell in _ROWS.items():
        lines.append(f"| {name} | {' | '.join(map(cell, demands))} |")
    return "\n".join(lines) + "\n"


def computed(page: str) -> str:
    """The page with the table that follows from its inputs."""
    return _COMPUTED.sub(lambda _: table(inputs_of(page)), page)


def main(arguments: list[str]) -> int:
    """Runs the command with these arguments of the command line. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="./dev bench capacity", description="Compute the table of docs/scaling.md."
    )
    parser.add_argument("--write", action="store_true", help="replace the table in the page")
    page: Path = PAGE
    text = page.read_text()
    if parser.parse_args(arguments).write:
        page.write_text(computed(text))
    print(table(inputs_of(text)), end="")
    return 0


def _number(value: float) -> str:
    """Two digits, or all digits before the point."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}".replace(",", " ")


def _gib(size: float) -> str:
    return f"{_number(size / _GIB)} GiB"
