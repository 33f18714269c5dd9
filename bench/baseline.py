"""The figures of the last release: `bench/baseline.json`, written by `--write-baseline`.

{"version": …, "date": …, "command": …, "machine": {…}, "rows": [{"name": …, …}, …]}
"""

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import PastRow, Row
from models.version import VERSION

BASELINE = Path(__file__).with_name("baseline.json")
_SYNCS = 200


@dataclass(frozen=True, slots=True)
class Machine:
    """What the absolute figures of a run depend on."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    fdatasync_ms: float
    """The median time until a disk has stored 4 KiB at the end of a file."""

    def to_text(self) -> str:
        """The machine on one line."""
        return (
            f"{self.cores} cores ({self.cpu}), {self.memory_gib:g} GiB, {self.system}, "
            f"Python {self.python}, fdatasync {self.fdatasync_ms:g} ms"
        )


def this_machine() -> Machine:
    """Describes the machine; writes a file of 1 MB for `fdatasync_ms`."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        fdatasync_ms=round(_fdatasync_ms(), 2),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _fdatasync_ms() -> float:
    milliseconds = []
    with tempfile.NamedTemporaryFile(prefix="backburner-bench-") as file:
        for _ in range(_SYNCS):
            started = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            milliseconds.append((time.perf_counter() - started) * 1000)
    return statistics.median(milliseconds)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A full run of the last release."""

    version: str
    date: str
    command: str
    machine: Machine
    rows: tuple[PastRow, ...]

    def to_text(self) -> str:
        """Which release it was, and where and how it was measured, on one line."""
        return f"{self.version}, {self.date}, `{self.command}` on {self.machine.to_text()}"


def read(path: Path = BASELINE) -> Baseline | None:
    """The run of the last release; None if there is none."""
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    machine = Machine(**content.pop("machine"))
    rows = tuple(PastRow.from_json(row) for row in content.pop("rows"))
    return Baseline(machine=machine, rows=rows, **content)


def write(rows: Iterable[Row], machine: Machine, command: str, path: Path = BASELINE) -> None:
    """Replaces the run of the last release by this one."""
    content: Mapping[str, object] = {
        "version": VERSION,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "machine": asdict(machine),
        "rows": [row.to_json() for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
