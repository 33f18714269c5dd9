"""Profiles of our processes while a row is measured, by py-spy."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from bench.flame_graph import flame_graph

_RATE = 200
"""Samples a second."""
_WRITE_TIMEOUT = 60.0
"""Seconds until py-spy has written its file."""


class NoPySpy(Exception):
    """py-spy is not installed; the message says how to install it."""


class Profiler(Protocol):
    """Records what processes do."""

    def recording(self, row: str, pids: Mapping[str, int]) -> AbstractContextManager[None]:
        """Records these processes, by name, within the context."""
        ...


class NoProfiler:
    """Records nothing."""

    def recording(self, row: str, pids: Mapping[str, int]) -> AbstractContextManager[None]:
        del row, pids
        return nullcontext()


class PySpy:
    """Writes `ROW-PROCESS.txt`, collapsed stacks, and `ROW-PROCESS.svg`, a flame graph.

    Only time on a core counts. Sampling stops the process for a moment, so figures of a profiled
    run are slightly too high.
    """

    def __init__(self, folder: Path) -> None:
        """Raises NoPySpy."""
        beside_python = Path(sys.executable).with_name("py-spy")
        program = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
        if program is None:
            raise NoPySpy("py-spy is not on PATH; `pip install py-spy` installs it")
        folder.mkdir(parents=True, exist_ok=True)
        self._program = program
        self._folder = folder

    @contextmanager
    def recording(self, row: str, pids: Mapping[str, int]) -> Iterator[None]:
        """Records these processes, by name, within the context."""
        recorders = {name: self._start(f"{row}-{name}", pid) for name, pid in pids.items()}
        try:
            yield
        finally:
            for recorder in recorders.values():
                recorder.send_signal(signal.SIGINT)  # it then writes its file
            for name, recorder in recorders.items():
                self._finish(f"{row}-{name}", recorder)

    def _start(self, name: str, pid: int) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{name}.log").open("wb")
        options = ["--pid", str(pid), "--format", "raw", "--rate", str(_RATE)]
        output = ["--output", str(self._stacks(name))]
        with log:
            return subprocess.Popen(
                [self._program, "record", *options, *output],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _stacks(self, name: str) -> Path:
        return self._folder / f"{name}.txt"

    def _finish(self, name: str, recorder: subprocess.Popen[bytes]) -> None:
        """Draws the graph. Without stacks the log of py-spy is kept, and a line is printed."""
        recorder.wait(_WRITE_TIMEOUT)
        stacks, log = self._stacks(name), self._folder / f"{name}.log"
        if not stacks.exists():
            print(f"no profile of {name}: see {log}", file=sys.stderr)
            return
        log.unlink()
        with stacks.open() as lines:
            stacks.with_suffix(".svg").write_text(flame_graph(name, lines))
